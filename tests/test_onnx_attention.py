"""The standard's own cases of ai.onnx Attention: those taken agree with it, the rest say why."""

import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import FLOAT, QKV, Y, build, node, plain_feeds, rank, save
from onnx.backend.test.case.node import collect_testcases
from running import both_ways, close, codes, found, only_site, optimized, rewritten, run

TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float16): 2e-2}
CODES = {
    "cache_unsupported",
    "mixed_dtype",
    "probabilities_shared",
    "proof_failed",
    "rank_unsupported",
    "scale_unknown",
    "mask_unsupported",
    "broadcast_unsupported",
}


@lru_cache
def cases() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflows in onnx's own generators
        collected = collect_testcases("Attention")
    return {
        case.name: case
        for case in collected
        if any(n.op_type == "Attention" for n in case.model.graph.node)
    }


@pytest.mark.parametrize("name", sorted(cases()))
def test_a_case_of_the_standard(name: str, tmp_path: Path) -> None:
    case = cases()[name]
    inputs, outputs = case.data_sets[0]
    path = tmp_path / "m.onnx"
    onnx.save_model(case.model, path)
    report = optimized(path, tmp_path / "out.onnx")
    assert report.replaced + len(report.refusals) == 1
    if report.refusals:
        assert report.refusals[0].code in CODES
        return
    names = [value.name for value in case.model.graph.input]
    feeds = {key: np.asarray(x) for key, x in zip(names, inputs, strict=True)}
    for result in both_ways(tmp_path / "out.onnx", feeds):
        got = result[case.model.graph.output[0].name]
        close(got, np.asarray(outputs[0], np.float64), TOLERANCE[got.dtype])


def test_most_cases_without_a_cache_are_taken(tmp_path: Path) -> None:
    """So that the test above does not pass by refusing everything."""
    taken = 0
    for name, case in cases().items():
        if len(case.model.graph.output) == 1 and len(case.model.graph.input) <= 4:
            folder = tmp_path / name
            folder.mkdir()
            taken += len(found(case.model, folder).sites)
    assert taken >= 25


def attention(extra: str = "", opset: int = 23, **attributes: Any) -> onnx.ModelProto:
    inputs = [*QKV, *((name, FLOAT, ["s", "t"]) for name in extra.split())]
    nodes = [node("Attention", f"q k v {extra}", "y", name="attention", **attributes)]
    return build(nodes, inputs, Y, opset=opset)


def test_attributes_become_the_site(tmp_path: Path) -> None:
    site = only_site(attention(scale=0.5, softcap=3.0, is_causal=1), tmp_path)
    assert (site.matcher, site.name) == ("onnx_attention", "attention")
    assert (site.scale, site.softcap, site.causal) == (0.5, 3.0, True)


def test_the_default_scale_is_that_of_the_head_dimension(tmp_path: Path) -> None:
    assert only_site(attention(), tmp_path).scale == 0.25


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("lengths", [(20, 24), (24, 20), (1, 24), (24, 24)])
def test_causality_is_aligned_at_the_first_query(
    causal: int, lengths: tuple[int, int], tmp_path: Path
) -> None:
    model = attention(is_causal=causal)
    output = rewritten(model, tmp_path)
    feeds = plain_feeds(2, *lengths)
    wanted = run(tmp_path / "m.onnx", feeds, library=False)["y"].astype(np.float64)
    for result in both_ways(output, feeds):
        close(result["y"], wanted, 2e-5)


def test_a_used_second_output_is_refused(tmp_path: Path) -> None:
    names = ["y", "", "", "scores"]
    made = onnx.helper.make_node("Attention", ["q", "k", "v"], names, "attention")
    outputs = [*Y, ("scores", FLOAT, rank(4))]
    assert codes(build([made], QKV, outputs, opset=23), tmp_path) == ["probabilities_shared"]


@pytest.mark.parametrize("heads", [("h", "h"), ("h", "g")])
def test_open_head_counts_are_right_or_refused(heads: tuple[str, str], tmp_path: Path) -> None:
    sizes = {"q": ["b", heads[0], "s", 16], "k": ["b", heads[1], "t", 16]}
    inputs = [(name, FLOAT, sizes["q" if name == "q" else "k"]) for name in "qkv"]
    model = build([node("Attention", "q k v", "y")], inputs, [("y", FLOAT, rank(4))], opset=23)
    report = optimized(save(model, tmp_path), tmp_path / "out.onnx")
    assert report.replaced + len(report.refusals) == 1
    if report.replaced:
        feeds = plain_feeds()
        if heads[0] != heads[1]:
            feeds |= {name: feeds[name][:, :2] for name in "kv"}
        wanted = run(tmp_path / "m.onnx", feeds, library=False)["y"].astype(np.float64)
        for result in both_ways(tmp_path / "out.onnx", feeds):
            close(result["y"], wanted, 2e-5)


def test_a_fixed_mask_shorter_than_the_keys_is_refused(tmp_path: Path) -> None:
    """Opset 24 pads it with -inf; the operator has no such rule."""
    inputs = [(n, FLOAT, [1, 4, 20 if n == "q" else 24, 16]) for n in "qkv"]
    model = build(
        [node("Attention", "q k v m", "y")],
        [*inputs, ("m", FLOAT, [20, 16])],
        [("y", FLOAT, [1, 4, 20, 16])],
        opset=24,
    )
    assert len(codes(model, tmp_path)) == 1
