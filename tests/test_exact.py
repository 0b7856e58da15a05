"""Exact outputs against the originals, with the library and without it, and against numpy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import (
    BOOL,
    FLOAT,
    HALF,
    LOWEST,
    QKV,
    SCALES,
    Array,
    C,
    Form,
    Y,
    attend,
    build,
    feeds_of,
    model_of,
    node,
    plain_feeds,
    plain_model,
    plain_nodes,
    products,
    rank,
    save,
    softmax,
    tensor,
    truth_of,
)
from onnx import ModelProto
from running import both_ways, close, found, optimized, rewritten, run

from sparsify import runtime

EXACT = 2e-5


def agree(
    model: ModelProto, feeds: dict[str, Array], folder: Path, tolerance: float = EXACT
) -> Path:
    """Every output of the rewritten model equals the original's; the path of the result."""
    output = rewritten(model, folder)
    wanted = run(folder / "m.onnx", feeds, library=False)
    for result in both_ways(output, feeds):
        assert list(result) == list(wanted)
        for name, value in wanted.items():
            close(result[name], value.astype(np.float64), tolerance)
    return output


@pytest.mark.parametrize("scale", SCALES)
def test_nine_spellings(scale: str, tmp_path: Path) -> None:
    form = Form(scale=scale, heads=2)
    feeds = feeds_of(form, s=32, t=32)
    output = agree(model_of(form), feeds, tmp_path)
    for result in both_ways(output, feeds):
        close(result["y"], truth_of(form, feeds), EXACT)


# Masks ---------------------------------------------------------------------------------------


def padded_left_and_with_holes() -> Array:
    """Batch 0: keys 0-4 off, and rows 0-4 without any key. Batch 1: keys 2, 7 and 11 off."""
    keep = np.ones((2, 1, 16, 16), dtype=bool)
    keep[0, :, :, :5] = False
    keep[0, :, :5, :] = False
    keep[1, :, :, [2, 7, 11]] = False
    return keep


def mask_feeds(form: Form) -> dict[str, Array]:
    feeds = feeds_of(form, s=16, t=16)
    feeds["keep"] = padded_left_and_with_holes()
    return feeds


EMPTY = (0, slice(None), slice(0, 5))


@pytest.mark.parametrize("mask", ["where", "where_drop"])
def test_guarded_rows_without_keys_are_zero(mask: str, tmp_path: Path) -> None:
    form = Form(mask=mask, guard=True)
    feeds = mask_feeds(form)
    output = agree(model_of(form), feeds, tmp_path)
    for result in both_ways(output, feeds):
        assert (result["y"][EMPTY] == 0).all()
        close(result["y"], truth_of(form, feeds), EXACT)


def test_unguarded_rows_without_keys_are_zero_and_the_report_says_so(tmp_path: Path) -> None:
    form = Form(mask="where")
    feeds = mask_feeds(form)
    path = save(model_of(form), tmp_path)
    original = run(path, feeds, library=False)["y"]
    assert np.isnan(original[EMPTY]).all()
    report = optimized(path, tmp_path / "out.onnx")
    assert "empty_rows" in report.decisions[0].reason
    for result in both_ways(tmp_path / "out.onnx", feeds):
        assert (result["y"][EMPTY] == 0).all()
        close(result["y"], np.nan_to_num(original), EXACT)


@pytest.mark.parametrize("fill", [-1e4, -1e9, LOWEST])
@pytest.mark.parametrize("spread", [1.0, 40.0])
def test_finite_fills_on_rows_that_keep_a_key(fill: float, spread: float, tmp_path: Path) -> None:
    form = Form(mask="where", fill=fill)
    feeds = feeds_of(form)
    feeds["q"] = np.float32(spread) * feeds["q"]
    output = rewritten(model_of(form), tmp_path)
    for result in both_ways(output, feeds):
        close(result["y"], truth_of(form, feeds), 5e-5)


@pytest.mark.parametrize("fill", [-1e4, -1e8, -1e9, LOWEST])
@pytest.mark.parametrize("spread", [1.0, 40.0])
def test_finite_fills_on_rows_without_keys(fill: float, spread: float, tmp_path: Path) -> None:
    """The original gives the mean of V there; so does the result, or its report says what else."""
    form = Form(mask="where", fill=fill)
    feeds = mask_feeds(form)
    feeds["q"] = np.float32(spread) * feeds["q"]
    path = save(model_of(form), tmp_path)
    original = run(path, feeds, library=False)["y"].astype(np.float64)
    report = optimized(path, tmp_path / "out.onnx")
    if not report.replaced:
        assert report.refusals
        return
    if "empty_rows" in report.decisions[0].reason:
        original[EMPTY] = 0
    else:
        mean = feeds["v"][0].mean(axis=1, keepdims=True)
        close(original[EMPTY], np.broadcast_to(mean, original[EMPTY].shape), 1e-3)
    for result in both_ways(tmp_path / "out.onnx", feeds):
        close(result["y"], original, 5e-5)


def test_the_lowest_half_as_fill(tmp_path: Path) -> None:
    form = Form(mask="where", fill=float(np.finfo(np.float16).min), dtype=HALF)
    feeds = feeds_of(form)
    for result in both_ways(rewritten(model_of(form), tmp_path), feeds):
        close(result["y"], truth_of(form, feeds), 2e-2)


@pytest.mark.parametrize("shape", ["st", "11st", "b11t", "bhst", "1h1t", "bhs1", "1"])
@pytest.mark.parametrize("lowest", [-np.inf, LOWEST, -1e4])
def test_additive_masks_of_every_rank(shape: str, lowest: float, tmp_path: Path) -> None:
    form = Form(mask="add", mask_shape=shape)
    feeds = feeds_of(form, s=16, t=16)
    off = np.random.default_rng(1).random(feeds["bias"].shape) < 0.3
    if feeds["bias"].shape[-1] > 1:
        off[..., 3] = False
        feeds["bias"] = np.where(off, np.float32(lowest), feeds["bias"])
    output = agree(model_of(form), feeds, tmp_path)
    for result in both_ways(output, feeds):
        close(result["y"], truth_of(form, feeds), EXACT)


@pytest.mark.parametrize("lowest", [-1e4, -1e9, LOWEST])
def test_additive_masks_keep_the_original_on_rows_without_keys(
    lowest: float, tmp_path: Path
) -> None:
    form = Form(mask="add")
    feeds = feeds_of(form, s=16, t=16)
    feeds["bias"] = np.where(padded_left_and_with_holes(), np.float32(0), np.float32(lowest))
    # Near -1e4 a float32 has steps of 1e-3, and the order of additions shows.
    agree(model_of(form), feeds, tmp_path, 2e-3 if lowest == -1e4 else EXACT)


def test_two_lowest_masks_together(tmp_path: Path) -> None:
    """A causal and a padding mask of the lowest float each: their sum is -inf in float32."""
    form = Form(mask="two_adds")
    feeds = feeds_of(form, s=16, t=16)
    causal = np.where(np.tri(16, dtype=bool), np.float32(0), np.float32(LOWEST))
    feeds["position"] = np.broadcast_to(causal, feeds["position"].shape).copy()
    padding = np.zeros((2, 1, 16, 16), np.float32)
    padding[0, ..., 12:] = LOWEST
    feeds["bias"] = padding
    agree(model_of(form), feeds, tmp_path)


def test_a_boolean_and_an_additive_mask(tmp_path: Path) -> None:
    form = Form(mask="where_then_add", mask_shape="bhst", guard=True)
    feeds = feeds_of(form)
    feeds["keep"][0, 1, 5:9] = False
    agree(model_of(form), feeds, tmp_path)


def test_a_mask_shared_by_two_layers_is_written_once(tmp_path: Path) -> None:
    nodes = [
        node("Not", "drop", "keep"),
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "s1"),
        node("Where", "keep s1 low", "m1"),
        node("Softmax", "m1", "p1", axis=-1),
        node("MatMul", "p1 v", "x"),
        node("MatMul", "x kt", "s2"),
        node("Where", "keep s2 low", "m2"),
        node("Softmax", "m2", "p2", axis=-1),
        node("MatMul", "p2 v", "y"),
    ]
    inputs = [*QKV, ("drop", BOOL, ["b", 1, 1, "t"])]
    model = build(nodes, inputs, Y, [tensor("low", -np.inf)])
    feeds = plain_feeds()
    feeds["drop"] = np.arange(24)[None, None, None] > np.array([20, 13])[:, None, None, None]
    agree(model, feeds, tmp_path)


# Cache, repeated heads, lengths --------------------------------------------------------------


def decoder() -> ModelProto:
    """New keys behind the cached ones; query i sees the keys up to its place behind the cache."""
    nodes = [
        node("Concat", "past_k new_k", "present_k", axis=2),
        node("Concat", "past_v new_v", "present_v", axis=2),
        node("Shape", "past_k", "past_shape"),
        node("Gather", "past_shape two", "past"),
        node("Shape", "present_k", "full_shape"),
        node("Gather", "full_shape two", "full"),
        node("Range", "zero full one", "columns"),
        node("Range", "past full one", "positions"),
        node("Unsqueeze", "positions last", "rows"),
        node("Less", "rows columns", "later"),
        node("Where", "later low none", "bias"),
        node("Transpose", "present_k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "scaled"),
        node("Add", "scaled bias", "masked"),
        node("Softmax", "masked", "p", axis=-1),
        node("MatMul", "p present_v", "y"),
    ]
    sizes = {"q": "s", "past_k": "p", "past_v": "p", "new_k": "s", "new_v": "s"}
    inputs = [(name, FLOAT, [1, 4, size, 8]) for name, size in sizes.items()]
    outputs = [
        ("y", FLOAT, [1, 4, "s", 8]),
        ("present_k", FLOAT, [1, 4, "full", 8]),
        ("present_v", FLOAT, [1, 4, "full", 8]),
    ]
    numbers = [tensor("low", -np.inf), tensor("none", 0.0), tensor("c", 8**-0.5)]
    integers = {"zero": 0, "one": 1, "two": 2, "last": [-1]}
    numbers += [tensor(name, value, np.int64) for name, value in integers.items()]
    return build(nodes, inputs, outputs, numbers)


@pytest.mark.parametrize(("s", "p"), [(4, 13), (1, 16), (1, 0), (17, 0)])
def test_decoding_with_a_cache(s: int, p: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = {"q": s, "past_k": p, "past_v": p, "new_k": s, "new_v": s}
    feeds = {
        name: rng.standard_normal((1, 4, n, 8)).astype(np.float32) for name, n in lengths.items()
    }
    output = agree(decoder(), feeds, tmp_path)
    key, value = (np.concatenate([feeds[f"past_{x}"], feeds[f"new_{x}"]], 2) for x in "kv")
    bias = np.where(np.tri(s, s + p, p, dtype=bool), 0.0, -np.inf)
    for result in both_ways(output, feeds):
        assert (result["present_k"] == key).all()
        assert (result["present_v"] == value).all()
        close(result["y"], attend(feeds["q"], key, value, 8**-0.5, bias), EXACT)


@pytest.mark.parametrize("repeat", ["expand", "tile"])
def test_repeated_heads(repeat: str, tmp_path: Path) -> None:
    form = Form(repeat=repeat, heads=8, dim=8, value_dim=16, scale="odd_after")
    feeds = feeds_of(form)
    other = replace(form, repeat="tile" if repeat == "expand" else "expand")
    assert np.abs(truth_of(form, feeds) - truth_of(other, feeds)).max() > 0.5
    output = agree(model_of(form), feeds, tmp_path)
    for result in both_ways(output, feeds):
        close(result["y"], truth_of(form, feeds), EXACT)


def test_one_key_value_head_for_all(tmp_path: Path) -> None:
    inputs = [QKV[0], *((name, FLOAT, ["b", 1, "t", 16]) for name in "kv")]
    feeds = plain_feeds()
    feeds |= {name: feeds[name][:, :1] for name in "kv"}
    agree(build(plain_nodes(), inputs, Y, [C]), feeds, tmp_path)


LENGTHS = [(1, 1), (2, 5), (1, 31), (1, 32), (1, 33), (3, 64), (1, 65), (1, 127), (1, 129)]


def test_one_session_for_all_lengths(tmp_path: Path) -> None:
    """Lengths around every block size, batches of one to three, short and long by turns."""
    output = rewritten(plain_model(), tmp_path)
    sessions = [runtime.session(output, library=library, threads=1) for library in (False, True)]
    for batch, length in [*LENGTHS, (1, 512), (1, 1)]:
        feeds = plain_feeds(batch, length, length)
        wanted = attend(feeds["q"], feeds["k"], feeds["v"], 0.25)
        for active in sessions:
            close(runtime.run(active, feeds)["y"], wanted, EXACT)


@pytest.mark.parametrize("length", [2048, 8192])
def test_long_inputs_on_a_sample_of_rows(length: int, tmp_path: Path) -> None:
    output = rewritten(plain_model(), tmp_path)
    feeds = plain_feeds(1, 64, length)
    rows = np.linspace(0, 63, 8).astype(int)
    wanted = attend(feeds["q"][:, :, rows], feeds["k"], feeds["v"], 0.25)
    for result in both_ways(output, feeds):
        close(result["y"][:, :, rows], wanted, EXACT)


def test_no_queries_and_no_batch(tmp_path: Path) -> None:
    output = rewritten(plain_model(), tmp_path)
    for sizes in ((0, 5, 5), (2, 0, 5)):
        for result in both_ways(output, plain_feeds(*sizes)):
            assert result["y"].shape == (sizes[0], 4, sizes[1], 16)


def test_random_batteries_of_masks_agree_with_numpy(tmp_path: Path) -> None:
    """One model, many random masks with empty rows, holes and both kinds of term."""
    form = Form(mask="where_then_add", mask_shape="bhst", guard=True, heads=2)
    output = rewritten(model_of(form), tmp_path)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        feeds = feeds_of(form, s=1 + 7 * seed, t=1 + 11 * (seed % 5), seed=seed)
        feeds["keep"] = rng.random(feeds["keep"].shape) < rng.random()
        feeds["bias"] *= np.float32(4)
        for result in both_ways(output, feeds):
            close(result["y"], truth_of(form, feeds), EXACT)


def test_dead_attention_stays_as_it_is(tmp_path: Path) -> None:
    """An attention that no output needs is not a reason to fail."""
    nodes = [*plain_nodes(), node("MatMul", "q kt", "z")]
    outputs = [("z", FLOAT, rank(4))]
    model = build(nodes, QKV, outputs, [C])
    path = save(model, tmp_path)
    optimized(path, tmp_path / "out.onnx")
    findings = found(model, tmp_path)
    assert len(findings.sites) + len(findings.refusals) == 1
    feeds = plain_feeds()
    wanted = products(feeds["q"], feeds["k"])
    for result in both_ways(tmp_path / "out.onnx", {"q": feeds["q"], "k": feeds["k"], **feeds}):
        close(result["z"], wanted, 1e-4)


def test_values_that_are_a_weight(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((1, 4, 24, 16)).astype(np.float32)
    model = build(plain_nodes(), QKV[:2], Y, [C, tensor("v", weight)])
    findings = found(model, tmp_path)
    assert len(findings.sites) + len(findings.refusals) == 1
    if findings.sites:
        feeds = {name: x for name, x in plain_feeds(1).items() if name != "v"}
        wanted = softmax(0.25 * products(feeds["q"], feeds["k"])) @ weight.astype(np.float64)
        for result in both_ways(rewritten(model, tmp_path), feeds):
            close(result["y"], wanted, EXACT)
