"""Half precision with parts in float32: scores, values and results that are cast on the way."""

from pathlib import Path

import numpy as np
import pytest
from graphs import FLOAT, HALF, QKV, build, node, plain_feeds, products, rank, softmax, tensor
from running import both_ways, close, only_site, rewritten

INPUTS = tuple((name, HALF, shape) for name, _, shape in QKV)


@pytest.mark.parametrize("wide", [False, True])
def test_values_and_result_in_float(wide: bool, tmp_path: Path) -> None:
    """Scores in float32, V cast to it; the result stays float32, or is cast back."""
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Cast", "raw", "scores", to=FLOAT),
        node("Mul", "scores c", "scaled"),
        node("Softmax", "scaled", "p", axis=-1),
        node("Cast", "v", "values", to=FLOAT),
        node("MatMul", "p values", "y" if wide else "result"),
    ]
    if not wide:
        nodes.append(node("Cast", "result", "y", to=HALF))
    outputs = [("y", FLOAT if wide else HALF, rank(4))]
    model = build(nodes, INPUTS, outputs, [tensor("c", 0.25)])
    site = only_site(model, tmp_path)
    assert (site.value.tensor, site.output_type, site.element_type) == ("v", FLOAT, HALF)
    feeds = {name: x.astype(np.float16) for name, x in plain_feeds().items()}
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    truth = softmax(0.25 * products(q, k)) @ v
    for result in both_ways(rewritten(model, tmp_path), feeds):
        assert result["y"].dtype == (np.float32 if wide else np.float16)
        close(result["y"], truth, 5e-3)
