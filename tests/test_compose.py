"""Random spellings in one graph: what is rewritten is equal, and all else has a refusal."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from composing import (
    AFTER,
    DECOYS,
    FILLS,
    MASKS,
    PRODUCTS,
    SCALES,
    VALUES,
    VIEWS,
    Spelling,
    feeds_of,
    model_of,
)
from graphs import save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import optimized

from sparsify import runtime

EXACT = 2e-5
SIZES = ((2, 20, 24), (3, 7, 9))

STEPS = st.tuples(st.sampled_from(MASKS * 2 + DECOYS), st.sampled_from(VIEWS))

SPELLINGS = st.builds(
    Spelling,
    product=st.sampled_from(PRODUCTS),
    scale=st.sampled_from(SCALES),
    steps=st.lists(STEPS, max_size=3).map(tuple),
    fill=st.sampled_from(FILLS),
    after=st.sampled_from(("none",) * 6 + AFTER),
    values=st.sampled_from(("matmul", *VALUES)),
    sinks=st.sampled_from((False, False, False, True)),
)


@settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    spellings=st.lists(SPELLINGS, min_size=1, max_size=3),
    opset=st.sampled_from([13, 17, 21]),
)
def test_whatever_is_rewritten_is_equal(
    spellings: list[Spelling], opset: int, tmp_path: Path
) -> None:
    path, output = save(model_of(spellings, opset), tmp_path), tmp_path / "out.onnx"
    output.unlink(missing_ok=True)
    report = optimized(path, output)
    assert report.replaced == report.found
    assert report.found + len(report.refusals) == len(spellings)
    assert all(len(r.reason) > 10 and r.nodes for r in report.refusals)
    if report.output is None:
        return
    left = [n.op_type for n in onnx.load(output).graph.node].count("Softmax")
    assert left == len(report.refusals)
    agree(path, output)


KNOWN = {
    "alibi": Spelling("folded", steps=(("add_heads", 4), ("keep", 4)), values="folded"),
    "bart": Spelling("folded", "on_query", (("add", 4), ("idle", 3)), values="folded"),
    "capped": Spelling(
        "repeated", "on_query", (("softcap", 4), ("add", 4)), after="guard", values="einsum"
    ),
    "deberta": Spelling(
        "folded", steps=(("second_product", 4), ("keep", 4)), after="zeroed", fill=-1e9
    ),
    "gpt-2": Spelling(steps=(("multiply", 4), ("add", 4))),
    "grouped": Spelling("groups", "div_after", (("add", 5), ("drop", 5)), after="idle"),
    "opt": Spelling("folded", "split", (("add", 4), ("far_clamp", 4)), values="folded"),
    "optimised": Spelling("fused", "none", (("add", 4), ("add_heads", 4)), values="fused"),
    "sinks": Spelling("repeated", steps=(("add", 4),), sinks=True),
    "swin": Spelling("einsum_bshd", "none", (("factor", 4), ("add_heads", 4), ("largest", 4))),
    "turned": Spelling("turned", steps=(("number", 4), ("subtract", 4)), values="transposed"),
    "t5": Spelling("einsum", "none", (("add_heads", 4), ("add_keys", 4)), values="einsum_turned"),
}
"""Several spellings at once, as models have them."""


@pytest.mark.parametrize("name", KNOWN)
def test_what_models_have_is_found(name: str, tmp_path: Path) -> None:
    path, output = save(model_of([KNOWN[name]], 17), tmp_path), tmp_path / "out.onnx"
    report = optimized(path, output)
    assert report.refusals == ()
    assert report.replaced == 1
    agree(path, output)


def test_all_of_them_in_one_graph(tmp_path: Path) -> None:
    path = save(model_of(list(KNOWN.values()), 21), tmp_path)
    report = optimized(path, tmp_path / "out.onnx")
    assert (report.replaced, report.refusals) == (len(KNOWN), ())
    agree(path, tmp_path / "out.onnx")


def agree(path: Path, output: Path) -> None:
    """Both files compute the same from the same inputs, without the library and with it."""
    original = runtime.session(path, library=False, threads=1)
    replaced = [runtime.session(output, library=library, threads=1) for library in (False, True)]
    for sizes in SIZES:
        feeds = feeds_of(*sizes)
        wanted = runtime.run(original, feeds)
        for session in replaced:
            for name, got in runtime.run(session, feeds).items():
                largest = np.abs(np.nan_to_num(wanted[name])).max()
                # a look-alike that is left alone may give NaN, and then gives it still
                np.testing.assert_allclose(
                    got, wanted[name], rtol=0, atol=EXACT * largest, err_msg=name
                )
