"""Graphs that look at the shape of the scores: the scores go, what was read from them stays."""

import numpy as np
import onnx
import pytest
from graphs import (
    BOOL,
    FLOAT,
    Form,
    build,
    feeds_of,
    node,
    plain_feeds,
    plain_nodes,
    products,
    softmax,
    tensor,
)
from onnx import TensorProto
from running import both_ways, close, only_site, rewritten, run

QKV = [(name, FLOAT, ["b", 4, length, 16]) for name, length in (("q", "s"), ("k", "t"), ("v", "t"))]
Y = [("y", FLOAT, ["b", 4, "s", 16])]
CORE = [
    node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
    node("MatMul", "q kt", "scores"),
    node("Mul", "scores c", "scaled"),
]
TAIL = [node("Softmax", "masked", "p", axis=-1), node("MatMul", "p v", "y")]
C = tensor("c", 0.25)


def distilbert():
    """The key padding mask is stretched to the shape of the scores, then filled in."""
    mask = [
        node("Shape", "scaled", "whole"),
        node("Expand", "padding whole", "stretched"),
        node("Where", "stretched low scaled", "masked"),
    ]
    inputs = [*QKV, ("padding", BOOL, ["b", 1, 1, "t"])]
    return build([*CORE, *mask, *TAIL], inputs, Y, [C, tensor("low", float("-inf"))])


def gpt2():
    """The causal mask is cut out of a table by the sizes of the scores."""
    mask = [
        node("Shape", "scaled", "whole"),
        node("Slice", "whole two three", "queries"),
        node("Slice", "whole three four", "keys"),
        node("Sub", "keys queries", "past"),
        node("Slice", "table past keys two", "rows"),
        node("Slice", "rows zero keys three", "causal"),
        node("Where", "causal scaled low", "masked"),
    ]
    numbers = {"zero": 0, "two": 2, "three": 3, "four": 4}
    table = np.tril(np.ones((1, 1, 64, 64), dtype=bool))
    stored = [C, tensor("low", -1e4), tensor("table", table, bool)]
    stored += [tensor(name, [value], np.int64) for name, value in numbers.items()]
    return build([*CORE, *mask, *TAIL], QKV, Y, stored)


def read_elsewhere():
    """The shape of the probabilities leaves the graph."""
    nodes = [*CORE, node("Shape", "p", "whole"), *TAIL]
    nodes[2] = node("Mul", "scores c", "masked")
    nodes = [*nodes[:3], *TAIL[:1], nodes[3], TAIL[1]]
    return build(nodes, QKV, [*Y, ("whole", TensorProto.INT64, [4])], [C])


@pytest.mark.parametrize("make", [distilbert, gpt2, read_elsewhere])
@pytest.mark.parametrize(("s", "t"), [(5, 5), (3, 9)])
def test_the_scores_are_not_computed_for_their_shape(make, s, t, tmp_path):
    model = make()
    output = rewritten(model, tmp_path)
    left = [n.op_type for n in onnx.load(output).graph.node]
    assert "MatMul" not in left
    assert "Softmax" not in left
    feeds = feeds_of(Form(), s=s, t=t)
    if make is distilbert:
        lengths = np.array([t, t - 2]).reshape(2, 1, 1, 1)
        feeds["padding"] = np.arange(t).reshape(1, 1, 1, t) >= lengths
    wanted = run(tmp_path / "m.onnx", feeds, library=False)
    for result in both_ways(output, feeds):
        for name, value in wanted.items():
            close(result[name], value.astype(np.float64), 2e-5)


def test_a_stretched_mask_is_read_before_it_is_stretched(tmp_path):
    (mask,) = only_site(distilbert(), tmp_path).masks
    assert (mask.operand.tensor, mask.sizes) == ("padding", (None, 1, 1, None))


def test_scores_reshaped_for_their_size(tmp_path):
    """The product stays for the size that is read, and the report says so; the numbers agree."""
    nodes = [
        *plain_nodes(),
        node("Reshape", "raw flat", "line"),
        node("Shape", "line", "n"),
    ]
    outputs = [*Y, ("n", TensorProto.INT64, [1])]
    model = build(nodes, QKV, outputs, [C, tensor("flat", [-1], np.int64)])
    assert any(note.startswith("sizes:") for note in only_site(model, tmp_path).notes)
    feeds = plain_feeds()
    truth = softmax(0.25 * products(feeds["q"], feeds["k"])) @ feeds["v"]
    for result in both_ways(rewritten(model, tmp_path), feeds):
        close(result["y"], truth, 2e-5)
        assert result["n"].tolist() == [2 * 4 * 20 * 24]
