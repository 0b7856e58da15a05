"""The standard's own cases of ai.onnx Attention: those taken agree with it, the rest say why."""

import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import BOOL, FLOAT, QKV, Array, Y, attend, build, node, plain_feeds, rank, save
from onnx import TensorProto
from onnx.backend.test.case.node import collect_testcases
from running import both_ways, close, codes, only_site, optimized, rewritten, run

from sparsify import SparsifyError

FLOAT16, BFLOAT16 = TensorProto.FLOAT16, TensorProto.BFLOAT16
WIDE = "_wide"
UNRUNNABLE = [
    f"test_attention_4d_{kind}_bf16_expanded"
    for kind in ("attn_mask_causal", "causal_padded_kv", "padded_kv")
]
"""Found and proved; ONNX Runtime has no kernel for the sum of bfloat16 masks that stays outside."""

TOLERANCE = {FLOAT: 2e-5, FLOAT16: 2e-2, BFLOAT16: 6e-2}


@lru_cache
def cases() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflows in onnx's own generators
        collected = collect_testcases("Attention")
    return {case.name: case for case in collected}


def is_expanded(name: str) -> bool:
    """Whether a case spells the operator out as its definition in other operators."""
    return "expanded" in name


def reads_the_product(name: str) -> bool:
    """Whether a case asks for the scores or the probabilities, which the operator never has."""
    native = cases()[name.partition("_expanded")[0]].model.graph.node[0]
    return len(native.output) > 3 and bool(native.output[3])


@pytest.mark.parametrize("name", sorted(cases()))
def test_a_case_of_the_standard(name: str, tmp_path: Path) -> None:
    """Every case is taken, but for those that read what is left out; its outputs are the truth."""
    case = cases()[name]
    path = save(case.model, tmp_path)
    report = optimized(path, tmp_path / "out.onnx")
    if reads_the_product(name):
        (refusal,) = report.refusals
        shared = ("probabilities_shared", "scores_shared")[: 1 + is_expanded(name)]
        assert refusal.code in shared
        return
    assert (report.replaced, report.refusals) == (1, ())
    inputs, outputs = case.data_sets[0]
    names = [value.name for value in case.model.graph.input]
    feeds = {key: wide(np.asarray(x)) for key, x in zip(names, inputs, strict=True)}
    output, suffix = tmp_path / "out.onnx", ""
    if "bf16" in name:
        output, suffix = bfloat16_inside(output), WIDE
    kinds = {value.name: value.type.tensor_type.elem_type for value in case.model.graph.input}
    feeds = {key + suffix * (kinds[key] == BFLOAT16): x for key, x in feeds.items()}
    if name in UNRUNNABLE:
        with pytest.raises(SparsifyError, match=r"implementation for Add\(14\)"):
            next(both_ways(output, feeds))
        return
    for result in both_ways(output, feeds):
        for value, wanted in zip(case.model.graph.output, outputs, strict=True):
            tolerance = TOLERANCE[value.type.tensor_type.elem_type]
            close(result[value.name + suffix], np.asarray(wanted, np.float64), tolerance)


def test_all_cases_of_the_standard_are_there() -> None:
    for expanded in (False, True):
        names = [name for name in cases() if is_expanded(name) == expanded]
        assert len(names) >= 93
        assert sum(reads_the_product(name) for name in names) == 18


def wide(values: Array) -> Array:
    """An array that ONNX Runtime takes from numpy, which has no bfloat16."""
    known = values.dtype in (np.float16, np.float32, np.int64, np.bool_)
    return values if known else values.astype(np.float32)


def bfloat16_inside(path: Path) -> Path:
    """The model with float in the place of bfloat16 at its inputs and outputs."""
    model = onnx.load(path)
    graph = model.graph
    for value in [v for v in graph.input if v.type.tensor_type.elem_type == BFLOAT16]:
        value.type.tensor_type.elem_type = FLOAT
        graph.node.insert(0, node("Cast", value.name + WIDE, value.name, to=BFLOAT16))
        value.name += WIDE
    for value in [v for v in graph.output if v.type.tensor_type.elem_type == BFLOAT16]:
        value.type.tensor_type.elem_type = FLOAT
        graph.node.append(node("Cast", value.name, value.name + WIDE, to=FLOAT))
        value.name += WIDE
    return save(model, path.parent, "wide.onnx")


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


CACHE = [(name, FLOAT, ["b", 4, "p", 16]) for name in ("pk", "pv")]


def cached(opset: int, causal: int, mask: str = "", **attributes: Any) -> onnx.ModelProto:
    """Attention with a cache, all of whose sizes are open; `mask` names its dimensions."""
    sizes = {"s": "s", "t": "p + t", "1": 1, "h": 4, "b": "b"}
    kind = BOOL if opset == 24 else FLOAT
    masks = [("m", kind, [sizes[axis] for axis in mask])] if mask else []
    outputs = [*Y, *((name, FLOAT, rank(4)) for name in ("ok", "ov"))]
    slots = f"q k v {'m' if mask else '_'} pk pv".replace("_", "")
    made = onnx.helper.make_node(
        "Attention", slots.split(" "), ["y", "ok", "ov"], "n", is_causal=causal, **attributes
    )
    return build([made], [*QKV, *masks, *CACHE], outputs, opset=opset)


@pytest.mark.parametrize("opset", [23, 24, 25])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["", "st", "hst", "b1st"])
def test_a_cache_of_open_length(opset: int, causal: int, mask: str, tmp_path: Path) -> None:
    windows = {"left_window_size": 6} if opset == 25 else {}
    model = cached(opset, causal, mask, **windows)
    output = rewritten(model, tmp_path)
    for batch, s, t, past in ((2, 20, 24, 7), (1, 1, 1, 12), (2, 5, 5, 0)):
        rng = np.random.default_rng(past)
        feeds = plain_feeds(batch, s, t)
        feeds |= {name: floats(rng, batch, 4, past, 16) for name in ("pk", "pv")}
        if mask:
            sizes = {"s": s, "t": past + t, "1": 1, "h": 4, "b": batch}
            feeds["m"] = floats(rng, *(sizes[axis] for axis in mask))
            if opset == 24:
                feeds["m"] = feeds["m"] > 0
        wanted = run(tmp_path / "m.onnx", feeds, library=False)
        for result in both_ways(output, feeds):
            for name, value in wanted.items():
                close(result[name], value.astype(np.float64), 2e-5)


def floats(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", [FLOAT, BOOL])
def test_a_mask_shorter_than_the_keys_forbids_the_rest(kind: int, tmp_path: Path) -> None:
    """From opset 24 on; ONNX Runtime's kernel fails on it, the standard's definition does not."""
    inputs = [(n, FLOAT, [1, 4, 20 if n == "q" else 24, 16]) for n in "qkv"]
    model = build(
        [node("Attention", "q k v m", "y")],
        [*inputs, ("m", kind, [20, 16])],
        [("y", FLOAT, [1, 4, 20, 16])],
        opset=24,
    )
    output = rewritten(model, tmp_path)
    feeds = plain_feeds(1, 20, 24)
    mask = floats(np.random.default_rng(3), 20, 16)
    feeds["m"] = mask > 0 if kind == BOOL else mask
    feeds["m"][:, 0] = 1
    bias = np.where(mask > 0, 0, -np.inf) if kind == BOOL else feeds["m"].astype(np.float64)
    if kind == BOOL:
        bias[:, 0] = 0
    wanted = attend(feeds["q"], feeds["k"][:, :, :16], feeds["v"][:, :, :16], 0.25, bias)
    for result in both_ways(output, feeds):
        close(result["y"], wanted, 2e-5)


def test_a_cache_and_lengths_at_once_are_refused(tmp_path: Path) -> None:
    made = onnx.helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv", "n"], ["y"], "n")
    inputs = [*QKV, *CACHE, ("n", TensorProto.INT64, ["b"])]
    assert codes(build([made], inputs, Y, opset=24), tmp_path) == ["cache_unsupported"]
