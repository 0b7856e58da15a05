"""Fused attention of ONNX Runtime: what is rewritten computes what ONNX Runtime computes."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import FLOAT, Array, Value, build
from onnx import ModelProto, TensorProto, helper
from running import both_ways, close, codes, found, optimized, rewritten, run

from sparsify import SparsifyError, load
from sparsify.feeds import stand_ins
from sparsify.trial import Sizes
from sparsify.verification import compare, run_model

INT32, INT64 = TensorProto.INT32, TensorProto.INT64
HEADS, DIM = 4, 32
WIDTH = HEADS * DIM
SIZES = ((2, 20, 7), (1, 9, 13))
"""Batch, queries and cached keys of the two runs of each case."""


def fused(
    op: str, inputs: Sequence[Value], outputs: Sequence[str], slots: str, **attributes: Any
) -> ModelProto:
    """One node; `slots` names its inputs in order, `_` for one that is left out."""
    names = ["" if name == "_" else name for name in slots.split()]
    made = helper.make_node(
        op, names, list(outputs), name="fused", domain="com.microsoft", **attributes
    )
    results = [(name, FLOAT, [None] * (3 if name == "y" else 4)) for name in outputs if name]
    if "present" in outputs:
        results[-1] = ("present", FLOAT, [None] * 5)
    model = build([made], inputs, results, opset=17)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def floats(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def agrees(
    model: ModelProto, folder: Path, draw: Callable[[int, int, int], Mapping[str, Array]]
) -> None:
    """The rewritten model gives what the original gives, at both sizes and both ways."""
    output = rewritten(model, folder)
    assert all(n.domain != "com.microsoft" for n in onnx.load(output).graph.node)
    for sizes in SIZES:
        feeds = draw(*sizes)
        wanted = run(folder / "m.onnx", feeds, library=False)
        for got in both_ways(output, feeds):
            for name, value in wanted.items():
                close(got[name], value.astype(np.float64), 5e-5)


# MultiHeadAttention ----------------------------------------------------------------------------

Q3 = ("q", FLOAT, ["b", "s", WIDTH])
K3, V3 = ("k", FLOAT, ["b", "t", WIDTH]), ("v", FLOAT, ["b", "t", WIDTH])
K4, V4 = (("k", FLOAT, ["b", HEADS, "t", DIM]), ("v", FLOAT, ["b", HEADS, "t", DIM]))
PAST = [(name, FLOAT, ["b", HEADS, "p", DIM]) for name in ("pk", "pv")]
BIAS = ("bias", FLOAT, [3 * WIDTH])
PRESENT = ("y", "ok", "ov")

MULTI_HEAD: dict[str, tuple[str, list[Value], tuple[str, ...], dict[str, Any]]] = {
    "plain": ("q k v", [], ("y",), {}),
    "scaled": ("q k v", [], ("y",), {"scale": 0.3}),
    "causal": ("q k v", [], ("y",), {"unidirectional": 1}),
    "bias": ("q k v bias", [BIAS], ("y",), {}),
    "lengths": ("q k v _ m", [("m", INT32, ["b"])], ("y",), {}),
    "padding": ("q k v _ m", [("m", INT32, ["b", "t"])], ("y",), {}),
    "padding_filter": (
        "q k v _ m",
        [("m", INT32, ["b", "t"])],
        ("y",),
        {"mask_filter_value": -2.0},
    ),
    "padding_3d": ("q k v _ m", [("m", INT32, ["b", "s", "t"])], ("y",), {}),
    "score_bias": ("q k v _ _ a", [("a", FLOAT, ["b", HEADS, "s", "t"])], ("y",), {}),
    "score_bias_one": ("q k v _ _ a", [("a", FLOAT, [1, 1, "s", "t"])], ("y",), {}),
    "present_only": ("q k v bias", [BIAS], PRESENT, {}),
    "divided": ("q k v", [], ("y",), {}),
    "past": ("q k v _ _ _ pk pv", PAST, PRESENT, {}),
    "past_causal_bias": ("q k v bias _ _ pk pv", [BIAS, *PAST], PRESENT, {"unidirectional": 1}),
    "past_padding": ("q k v _ m _ pk pv", [("m", INT32, ["b", "l"]), *PAST], PRESENT, {}),
    "past_score_bias": (
        "q k v bias _ a pk pv",
        [BIAS, ("a", FLOAT, [1, HEADS, "s", "l"]), *PAST],
        PRESENT,
        {},
    ),
}


def multi_head(name: str) -> ModelProto:
    slots, inputs, outputs, attributes = MULTI_HEAD[name]
    keys = [K4, V4] if name == "divided" else [K3, V3]
    if "unidirectional" in attributes:  # as many keys as queries, or nothing says what it means
        keys = [(key[0], FLOAT, ["b", "s", WIDTH]) for key in keys]
    return fused(
        "MultiHeadAttention", [Q3, *keys, *inputs], outputs, slots, num_heads=HEADS, **attributes
    )


def drawn(model: ModelProto, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Random inputs; integers are masks where they are of two dimensions, else lengths."""
    rng, feeds = np.random.default_rng(seed), {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in kind.shape.dim]
        if kind.elem_type == FLOAT:
            feeds[value.name] = floats(rng, *shape)
        elif len(shape) > 1:
            feeds[value.name] = rng.integers(0, 2, shape).astype(np.int32)
            feeds[value.name][..., 0] = 1
        else:
            feeds[value.name] = rng.integers(1, sizes["t"] + 1, shape).astype(np.int32)
    return feeds


@pytest.mark.parametrize("name", sorted(MULTI_HEAD))
def test_multi_head(name: str, tmp_path: Path) -> None:
    model = multi_head(name)

    def draw(batch: int, queries: int, past: int) -> Mapping[str, Array]:
        keys = queries if "causal" in name else queries + 3
        sizes = {"b": batch, "s": queries, "t": keys, "p": past, "l": keys + past}
        return drawn(model, sizes)

    agrees(model, tmp_path, draw)


@pytest.mark.parametrize("name", ["lengths", "padding"])
def test_a_sequence_of_padding_only_is_computed_all_the_same(name: str, tmp_path: Path) -> None:
    """ONNX Runtime adds one number to all its scores, which leaves the digits behind it."""
    model = multi_head(name)
    output = rewritten(model, tmp_path)
    feeds = drawn(model, {"b": 2, "s": 20, "t": 23})
    feeds["m"][0] = 0
    wanted = run(tmp_path / "m.onnx", feeds, library=False)["y"].astype(np.float64)
    for got in both_ways(output, feeds):
        close(got["y"], wanted, 5e-3)


# Attention with packed weights -----------------------------------------------------------------

X = ("x", FLOAT, ["b", "s", 24])
WEIGHTS = [("w", FLOAT, [24, 3 * WIDTH]), BIAS]
PAST5 = ("past", FLOAT, [2, "b", HEADS, "p", DIM])

PACKED: dict[str, tuple[str, list[Value], tuple[str, ...], dict[str, Any]]] = {
    "plain": ("x w bias", [], ("y",), {}),
    "no_bias": ("x w", [], ("y",), {}),
    "scaled": ("x w bias", [], ("y",), {"scale": 0.3}),
    "causal": ("x w bias", [], ("y",), {"unidirectional": 1}),
    "lengths": ("x w bias m", [("m", INT32, ["b"])], ("y",), {}),
    "padding": ("x w bias m", [("m", INT32, ["b", "s"])], ("y",), {}),
    "padding_causal": ("x w bias m", [("m", INT32, ["b", "s"])], ("y",), {"unidirectional": 1}),
    "padding_3d": ("x w bias m", [("m", INT32, ["b", "s", "s"])], ("y",), {}),
    "score_bias": ("x w bias _ _ a", [("a", FLOAT, ["b", HEADS, "s", "s"])], ("y",), {}),
    "present_only": ("x w bias", [], ("y", "present"), {}),
    "past": ("x w bias _ past", [PAST5], ("y", "present"), {}),
    "past_causal": ("x w bias _ past", [PAST5], ("y", "present"), {"unidirectional": 1}),
    "past_padding": (
        "x w bias m past",
        [("m", INT32, ["b", "l"]), PAST5],
        ("y", "present"),
        {"unidirectional": 1},
    ),
    "widths": ("x w bias", [], ("y",), {"qkv_hidden_sizes": [WIDTH, WIDTH, 2 * WIDTH]}),
}


def packed(name: str) -> ModelProto:
    slots, inputs, outputs, attributes = PACKED[name]
    whole = sum(attributes.get("qkv_hidden_sizes", [3 * WIDTH]))
    weights = [("w", FLOAT, [24, whole]), ("bias", FLOAT, [whole])]
    weights = [value for value in weights if value[0] in slots.split()]
    return fused("Attention", [X, *weights, *inputs], outputs, slots, num_heads=HEADS, **attributes)


@pytest.mark.parametrize("name", sorted(PACKED))
def test_packed_weights(name: str, tmp_path: Path) -> None:
    model = packed(name)

    def draw(batch: int, queries: int, past: int) -> Mapping[str, Array]:
        sizes = {"b": batch, "s": queries, "t": queries, "p": past, "l": queries + past}
        feeds = drawn(model, sizes)
        feeds["w"] /= 5
        return feeds

    agrees(model, tmp_path, draw)


# GroupQueryAttention ---------------------------------------------------------------------------

KV_HEADS = 2
NARROW = KV_HEADS * DIM
GQ: list[Value] = [Q3, ("k", FLOAT, ["b", "s", NARROW]), ("v", FLOAT, ["b", "s", NARROW])]
GQ_PAST: list[Value] = [(name, FLOAT, ["b", KV_HEADS, "p", DIM]) for name in ("pk", "pv")]
LENGTHS: list[Value] = [("last", INT32, ["b"]), ("total", INT32, [1])]
TABLES: list[Value] = [("cos", FLOAT, [64, DIM // 2]), ("sin", FLOAT, [64, DIM // 2])]
PARTIAL: list[Value] = [("cos", FLOAT, [64, DIM // 4]), ("sin", FLOAT, [64, DIM // 4])]
ROTARY = "q k v pk pv last total cos sin"

GROUPED: dict[str, tuple[str, list[Value], dict[str, Any]]] = {
    "plain": ("q k v pk pv last total", GQ, {}),
    "scaled": ("q k v pk pv last total", GQ, {"scale": 0.3}),
    "softcap": ("q k v pk pv last total", GQ, {"softcap": 2.0}),
    "window": ("q k v pk pv last total", GQ, {"local_window_size": 4}),
    "smooth": ("q k v pk pv last total", GQ, {"smooth_softmax": 1}),
    "sinks": (f"{ROTARY} _ _ sinks", [*GQ, *TABLES, ("sinks", FLOAT, [HEADS])], {}),
    "two_sided": ("q k v pk pv last total", GQ, {"causal": 0}),
    "packed": ("q _ _ pk pv last total", [("q", FLOAT, ["b", "s", WIDTH + 2 * NARROW])], {}),
    "rotary": (ROTARY, [*GQ, *TABLES], {"do_rotary": 1}),
    "rotary_interleaved": (ROTARY, [*GQ, *TABLES], {"do_rotary": 1, "rotary_interleaved": 1}),
    "rotary_partial": (ROTARY, [*GQ, *PARTIAL], {"do_rotary": 1}),
    "rotary_packed": (
        "q _ _ pk pv last total cos sin",
        [("q", FLOAT, ["b", "s", WIDTH + 2 * NARROW]), *TABLES],
        {"do_rotary": 1},
    ),
    "rotary_positions": (
        f"{ROTARY} at",
        [*GQ, *TABLES, ("at", INT64, ["b", "s"])],
        {"do_rotary": 1},
    ),
    "bias": (f"{ROTARY} _ a", [*GQ, *TABLES, ("a", FLOAT, ["b", HEADS, "s", "l"])], {}),
    "bias_one": (
        f"{ROTARY} _ a",
        [*GQ, *TABLES, ("a", FLOAT, [1, 1, "s", "l"])],
        {"softcap": 3.0, "local_window_size": 5},
    ),
}

STEPS = {
    "prompt": (2, 9, 0, (0, 0)),
    "prompt_in_a_buffer": (1, 9, 20, (0,)),
    "token": (3, 1, 12, (12, 12, 12)),
    "token_ragged": (3, 1, 12, (12, 3, 7)),
    "token_in_a_buffer": (2, 1, 30, (11, 4)),
    "chunk": (1, 5, 8, (8,)),
    "chunk_in_a_buffer": (1, 5, 32, (8,)),
}
"""Batch, new keys, room in the cache, and how much of it each batch has filled."""


def grouped(name: str) -> ModelProto:
    slots, inputs, attributes = GROUPED[name]
    counts = {"num_heads": HEADS, "kv_num_heads": KV_HEADS}
    inputs = [*inputs, *GQ_PAST, *LENGTHS]
    return fused("GroupQueryAttention", inputs, PRESENT, slots, **counts, **attributes)


def step_feeds(model: ModelProto, step: str) -> dict[str, Array]:
    batch, new, room, held = STEPS[step]
    total = max(held) + new
    sizes = {"b": batch, "s": new, "p": room, "l": total, "t": total}
    feeds = drawn(model, sizes)
    feeds["last"] = np.array([count + new - 1 for count in held], np.int32)
    feeds["total"] = np.array([total], np.int32)
    if "at" in feeds:
        feeds["at"] = np.array([[count + i for i in range(new)] for count in held], np.int64)
    return feeds


@pytest.mark.parametrize("name", sorted(GROUPED))
def test_group_query(name: str, tmp_path: Path) -> None:
    model = grouped(name)
    output = rewritten(model, tmp_path)
    for step in STEPS:
        feeds = step_feeds(model, step)
        wanted = run(tmp_path / "m.onnx", feeds, library=False)
        for got in both_ways(output, feeds):
            for key, value in wanted.items():
                close(got[key], value.astype(np.float64), 5e-5)


def test_a_prompt_shorter_than_its_padding(tmp_path: Path) -> None:
    """Rows of padding have no meaning, and what is cached of them has none."""
    model = grouped("rotary")
    output = rewritten(model, tmp_path)
    feeds = step_feeds(model, "prompt")
    feeds["last"] = np.array([8, 5], np.int32)
    wanted = run(tmp_path / "m.onnx", feeds, library=False)
    for got in both_ways(output, feeds):
        for key, axis in (("y", 0), ("ok", 1), ("ov", 1)):
            close(got[key][0], wanted[key][0].astype(np.float64), 5e-5)
            rows = (got[key][1].take(range(6), axis), wanted[key][1].take(range(6), axis))
            close(rows[0], rows[1].astype(np.float64), 5e-5)


# What is refused -------------------------------------------------------------------------------

Q5 = ("q", FLOAT, ["b", "s", HEADS, 3, DIM])
ALONE = [("buffer", INT32, [1]), ("beams", INT32, ["b", 1, "p"])]

REFUSED: dict[str, tuple[str, str, list[Value], tuple[str, ...], dict[str, Any]]] = {
    "fused_unsupported packed": ("MultiHeadAttention", "q", [Q5], ("y",), {}),
    "shared_buffer_cache length": (
        "MultiHeadAttention",
        "q k v _ _ _ pk pv buffer",
        [Q3, K3, V3, *PAST, ALONE[0]],
        PRESENT,
        {},
    ),
    "shared_buffer_cache beams": (
        "MultiHeadAttention",
        "q k v _ _ _ pk pv buffer beams",
        [Q3, K3, V3, *PAST, *ALONE],
        PRESENT,
        {},
    ),
    "probabilities_shared": ("MultiHeadAttention", "q k v", [Q3, K3, V3], (*PRESENT, "qk"), {}),
    "causal_lengths": ("MultiHeadAttention", "q k v", [Q3, K3, V3], ("y",), {"unidirectional": 1}),
    "mask_unsupported": (
        "MultiHeadAttention",
        "q k v _ m",
        [Q3, K3, V3, ("m", INT32, ["b", 1, "s", "t"])],
        ("y",),
        {},
    ),
    "shared_buffer_cache": (
        "Attention",
        "x w bias _ past _ buffer",
        [X, *WEIGHTS, PAST5, ALONE[0]],
        ("y", "present"),
        {"past_present_share_buffer": 1},
    ),
    "fused_unsupported rotary": ("Attention", "x w bias", [X, *WEIGHTS], ("y",), {"do_rotary": 1}),
    "fused_unsupported norm": (
        "GroupQueryAttention",
        f"{ROTARY} _ _ _ _ _ qn kn",
        [*GQ, *GQ_PAST, *LENGTHS, *TABLES, ("qn", FLOAT, [DIM]), ("kn", FLOAT, [DIM])],
        PRESENT,
        {"kv_num_heads": KV_HEADS},
    ),
    "fused_unsupported": ("DecoderMaskedMultiHeadAttention", "q k v", [Q3, K3, V3], ("y",), {}),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_has_a_reason(name: str, tmp_path: Path) -> None:
    op, slots, inputs, outputs, attributes = REFUSED[name]
    model = fused(op, inputs, outputs, slots, num_heads=HEADS, **attributes)
    assert codes(model, tmp_path) == [name.split()[0]]


UNSUPPORTED = ("PackedAttention", "PackedMultiHeadAttention", "SparseAttention", "QAttention")


@pytest.mark.parametrize("op", [*UNSUPPORTED, "LongformerAttention", "DecoderAttention"])
def test_every_other_fused_attention_is_named(op: str, tmp_path: Path) -> None:
    (refusal,) = found(fused(op, [Q3], ("y",), "q", num_heads=HEADS), tmp_path).refusals
    assert refusal.code == "fused_unsupported"
    assert op in refusal.reason


# Models that ONNX Runtime's own optimizer fused ------------------------------------------------

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "models" / "ort_fixtures"


def fixtures() -> list[str]:
    manifest = FOLDER / "manifest.json"
    if not manifest.is_file():
        return []
    entries = json.loads(manifest.read_text(encoding="utf-8"))
    return [entry["file"] for entry in entries if entry["fused"]]


LEFT = {
    "dmmha_cross_attn": "fused_unsupported",
    "dmmha_self_attn": "fused_unsupported",
    "dmmha_inside_mha_cross_attn": "probabilities_shared",
    "dmmha_inside_mha_self_attn": "shared_buffer_cache",
    "embed_layer_norm_format1": "heads_unknown",  # more heads than its weights have columns
    "embed_layer_norm_format2": "heads_unknown",
    "embed_layer_norm_format4": "heads_unknown",
    "gpt2_megatron_opt_no_skiplayernorm": "mask_unsupported",  # nor does ONNX Runtime's CPU run it
    "gpt2_megatron_opt_skiplayernorm": "mask_unsupported",
    "packed_attention_fp16": "heads_unknown",  # its weights are inputs of open size
    "packed_attention_fp16.rbp": "heads_unknown",
    "packed_attention_fp32": "heads_unknown",
}
"""Fixtures of opset 12 and newer whose fused attention is left alone, with the refusal's code."""


@pytest.mark.parametrize("name", fixtures())
def test_a_fixture_of_the_optimizer(name: str, tmp_path: Path) -> None:
    output, model = tmp_path / "o.onnx", load(FOLDER / name)
    report = optimized(FOLDER / name, output)
    left = {refusal.code for refusal in report.refusals} - {"scope_unsupported"}
    expected = {LEFT[Path(name).stem]} if Path(name).stem in LEFT else set()
    assert left == expected or (model.opset < 12 and left <= {"opset_too_old"})
    if not report.replaced:
        return
    try:
        feeds = stand_ins(model)
        wanted = run_model(FOLDER / name, [feeds], library=False).outputs
    except (SparsifyError, ValueError):  # sizes of -1, ids out of range, halves
        pytest.skip("the fixture itself does not run on stand-in inputs")
    for library in (False, True):
        for error in compare(wanted, run_model(output, [feeds], library=library).outputs):
            assert error.rel_l2 < 1e-3


# How trials draw what a prologue reads ---------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [(7, 7), ("k_length", 24), ("q_heads*head_dim", 32), ("k_length-past_length", 19)],
)
def test_sizes_by_name(text: int | str, size: int) -> None:
    assert Sizes(2, 4, 2, 20, 24, 8, 8).value(text) == size


def test_the_error_of_the_proof_is_known(tmp_path: Path) -> None:
    for name in ("plain", "past"):
        (site,) = found(multi_head(name), tmp_path).sites
        assert site.proof is not None
        assert site.proof < 1e-5
