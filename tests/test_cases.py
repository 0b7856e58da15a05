"""Cases that broke other tools: decoys only, spellings, masks, shared outputs, caches, repeats."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from graphs import (
    BOOL,
    FLOAT,
    HALF,
    LOWEST,
    QKV,
    Array,
    C,
    Value,
    Y,
    attend,
    build,
    node,
    plain_feeds,
    plain_nodes,
    products,
    rank,
    save,
    softmax,
    tensor,
)
from onnx import ModelProto, NodeProto
from running import both_ways, close, found, only_site, optimized, rewritten, run

from sparsify.cli import cli

EXACT = 2e-5
I64 = np.int64


def call(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    return result.exit_code, result.output


# C01: no attention in the model ---------------------------------------------------------------


def convolution_with_decoys() -> ModelProto:
    rng = np.random.default_rng(0)
    nodes = [
        node("Conv", "image kernel", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "e"),
        node("Flatten", "e", "flat"),
        node("Gemm", "flat weight", "x"),
        node("MatMul", "q k", "scores"),
        node("Softmax", "scores", "p", name="without values", axis=-1),
        node("ReduceMax", "p", "z", axes=[-1]),
        node("Softmax", "scores", "p2", name="over queries", axis=1),
        node("MatMul", "p2 v", "y"),
    ]
    inputs: list[Value] = [("image", FLOAT, ["b", 3, 8, 8]), ("q", FLOAT, ["b", "s", 16])]
    inputs += [("k", FLOAT, ["b", 16, "t"]), ("v", FLOAT, ["b", "t", 16])]
    outputs: list[Value] = [("x", FLOAT, ["b", 5]), ("z", FLOAT, rank(3)), ("y", FLOAT, rank(3))]
    stored = [tensor("kernel", rng.standard_normal((4, 3, 3, 3)))]
    stored += [tensor("weight", rng.standard_normal((256, 5)))]
    return build(nodes, inputs, outputs, stored)


def test_c01_no_attention(tmp_path: Path) -> None:
    path, output = save(convolution_with_decoys(), tmp_path), tmp_path / "o.onnx"
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    code, said = call(path, "-o", output)
    assert code == 3
    assert "0 attention sites replaced" in " ".join(said.split())
    assert not output.exists()
    findings = found(convolution_with_decoys(), tmp_path)
    assert findings.sites == ()
    assert {refusal.code for refusal in findings.refusals} == {"not_attention", "softmax_axis"}
    for name in ("without values", "over queries"):
        assert any(name in refusal.nodes for refusal in findings.refusals)
        assert name in said
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def test_c01_a_file_that_is_written_all_the_same_is_the_same(tmp_path: Path) -> None:
    path, output = save(convolution_with_decoys(), tmp_path), tmp_path / "o.onnx"
    code, _ = call(path, "-o", output, "--allow-noop")
    assert code == 0
    assert onnx.load(output).graph == onnx.load(path).graph


# C02: one attention, spelled nine times -------------------------------------------------------

SHORT: tuple[Value, ...] = tuple((name, FLOAT, ["b", 2, "s", 16]) for name in "qkv")
DYNAMIC = [
    node("Shape", "q", "sizes"),
    node("Slice", "sizes last end", "width"),
    node("Cast", "width", "wide", to=FLOAT),
    node("Sqrt", "wide", "root"),
    node("Div", "one root", "inverse"),
    node("Sqrt", "inverse", "factor"),
    node("Mul", "q factor", "q1"),
    node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
    node("Mul", "kt factor", "k1"),
    node("MatMul", "q1 k1", "z"),
]
TURN = node("Transpose", "k", "kt", perm=[0, 1, 3, 2])
PRODUCT = node("MatMul", "q kt", "raw")
THREE = [
    *(node("Reshape", f"{n} fold", f"{n}3") for n in "qkv"),
    node("Transpose", "k3", "kt", perm=[0, 2, 1]),
    node("MatMul", "q3 kt", "raw"),
    node("Mul", "raw c", "z"),
]

NINE: dict[str, Sequence[NodeProto]] = {
    "multiplied after": [TURN, PRODUCT, node("Mul", "raw c", "z")],
    "divided after": [TURN, PRODUCT, node("Div", "raw four", "z")],
    "queries only": [TURN, node("Mul", "q c", "q1"), node("MatMul", "q1 kt", "z")],
    "keys, number first": [TURN, node("Mul", "c kt", "k1"), node("MatMul", "q k1", "z")],
    "both": [
        TURN,
        node("Mul", "q half", "q1"),
        node("Mul", "kt half", "k1"),
        node("MatMul", "q1 k1", "z"),
    ],
    "computed": DYNAMIC,
    "cast between": [
        TURN,
        PRODUCT,
        node("Cast", "raw", "a", to=FLOAT),
        node("Mul", "a c", "z"),
    ],
    "three dimensions": THREE,
    "einsum": [node("Einsum", "q k", "raw", equation="bhsd,bhtd->bhst"), node("Mul", "raw c", "z")],
}


@pytest.mark.parametrize("name", NINE)
def test_c02_nine_spellings(name: str, tmp_path: Path) -> None:
    if name == "three dimensions":
        tail = [
            node("Softmax", "z", "p", axis=2),
            node("MatMul", "p v3", "y3"),
            node("Reshape", "y3 apart", "y"),
        ]
    else:
        tail = [node("Softmax", "z", "p", axis=-1), node("MatMul", "p v", "y")]
    numbers = {"c": 0.25, "four": 4.0, "half": 0.5, "one": 1.0}
    stored = [tensor(key, value) for key, value in numbers.items()]
    ints = {"last": [-1], "end": [1 << 62], "fold": [-1, 32, 16], "apart": [-1, 2, 32, 16]}
    stored += [tensor(key, value, I64) for key, value in ints.items()]
    model = build([*NINE[name], *tail], SHORT, [("y", FLOAT, rank(4))], stored)
    assert only_site(model, tmp_path).scale == pytest.approx(0.25)
    feeds = {n: x[:, :2] for n, x in plain_feeds(2, 32, 32).items()}
    wanted = attend(feeds["q"], feeds["k"], feeds["v"], 0.25)
    for result in both_ways(rewritten(model, tmp_path), feeds):
        close(result["y"], wanted, EXACT)


def test_c02_a_scale_of_100_in_half_precision(tmp_path: Path) -> None:
    nodes = [TURN, PRODUCT, node("Cast", "raw", "wide", to=FLOAT), node("Mul", "wide c", "z")]
    nodes += [node("Softmax", "z", "p0", axis=-1), node("Cast", "p0", "p", to=HALF)]
    nodes += [node("MatMul", "p v", "y")]
    inputs = [(name, HALF, shape) for name, _, shape in SHORT]
    model = build(nodes, inputs, [("y", HALF, rank(4))], [tensor("c", 100.0)])
    assert only_site(model, tmp_path).scale == 100.0
    feeds = {n: (0.2 * x[:, :2]).astype(np.float16) for n, x in plain_feeds(2, 32, 32).items()}
    wanted = attend(feeds["q"], feeds["k"], feeds["v"], 100.0)
    for result in both_ways(rewritten(model, tmp_path), feeds):
        close(result["y"], wanted, 2e-2)


# C03: masks -----------------------------------------------------------------------------------

EMPTY = (0, slice(None), slice(0, 5))


def padded() -> Array:
    """Batch 0 padded on the left, with five rows without keys; batch 1 with holes."""
    keep = np.ones((2, 1, 16, 16), dtype=bool)
    keep[0, :, :, :5] = keep[0, :, :5] = False
    keep[1, :, :, [2, 7, 11]] = False
    return keep


def masked_model(low: float, *, guard: bool, direct: bool) -> ModelProto:
    nodes = [TURN, PRODUCT, node("Mul", "raw c", "scaled")]
    if direct:
        nodes += [node("Where", "keep scaled low", "z")]
    else:
        nodes += [node("Where", "keep zero low", "bias"), node("Add", "scaled bias", "z")]
    nodes += [node("Softmax", "z", "p0", axis=-1)]
    if guard:
        nodes += [node("IsNaN", "p0", "nan"), node("Where", "nan zero p0", "p")]
    else:
        nodes += [node("Identity", "p0", "p")]
    nodes += [node("MatMul", "p v", "y")]
    inputs = [*((n, FLOAT, ["b", 4, "s", 8]) for n in "qkv"), ("keep", BOOL, ["b", 1, "s", "t"])]
    stored = [C, tensor("low", low), tensor("zero", 0.0)]
    return build(nodes, inputs, [("y", FLOAT, ["b", 4, "s", 8])], stored)


@pytest.mark.parametrize("low", [-np.inf, LOWEST])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("guard", [True, False])
def test_c03_masks(low: float, direct: bool, guard: bool, tmp_path: Path) -> None:
    """Rows without keys are 0 where the original is NaN or 0, and mean(V) where that is it."""
    feeds: dict[str, Array] = {n: x[..., :8] for n, x in plain_feeds(2, 16, 16).items()}
    feeds["keep"] = padded()
    output = rewritten(masked_model(low, guard=guard, direct=direct), tmp_path)
    scores = 0.25 * products(feeds["q"], feeds["k"])
    wanted = softmax(np.where(feeds["keep"], scores, low), guard=True) @ feeds["v"]
    if low == LOWEST:
        wanted[EMPTY] = feeds["v"][0].mean(axis=1, keepdims=True)
    else:
        assert (wanted[EMPTY] == 0).all()
    for result in both_ways(output, feeds):
        close(result["y"], wanted, EXACT)


RANKS: dict[str, Sequence[int | str]] = {
    "lengths": ["s", "t"],
    "one": [1, 1, "s", "t"],
    "keys": ["b", 1, 1, "t"],
    "whole": ["b", 4, "s", "t"],
}


@pytest.mark.parametrize("name", RANKS)
def test_c03_additive_masks(name: str, tmp_path: Path) -> None:
    nodes = plain_nodes("masked")
    nodes.insert(3, node("Add", "scaled bias", "masked"))
    model = build(nodes, [*QKV, ("bias", FLOAT, RANKS[name])], Y, [C])
    sizes = {"b": 2, "s": 20, "t": 24}
    shape = [sizes.get(str(size), 1 if size == 1 else 4) for size in RANKS[name]]
    rng = np.random.default_rng(0)
    bias = np.where(rng.random(shape) < 0.3, -np.inf, rng.standard_normal(shape))
    bias[..., 0] = 0
    feeds = {**plain_feeds(), "bias": bias.astype(np.float32)}
    wanted = attend(feeds["q"], feeds["k"], feeds["v"], 0.25, feeds["bias"])
    for result in both_ways(rewritten(model, tmp_path), feeds):
        close(result["y"], wanted, EXACT)


# C04: probabilities used twice ----------------------------------------------------------------

SHARED: dict[str, tuple[list[NodeProto], str, str]] = {
    "probabilities are an output": ([], "p", "probabilities_shared"),
    "probabilities are averaged": (
        [node("ReduceMean", "p", "mean", axes=[1])],
        "mean",
        "probabilities_shared",
    ),
    "scores are an output": ([], "scaled", "scores_shared"),
}


@pytest.mark.parametrize("name", SHARED)
def test_c04_shared(name: str, tmp_path: Path) -> None:
    more, output, code = SHARED[name]
    model = build([*plain_nodes(), *more], QKV, [*Y, (output, FLOAT, rank(4))], [C])
    path = save(model, tmp_path)
    report = optimized(path, tmp_path / "out.onnx")
    assert [refusal.code for refusal in report.refusals] == [code]
    assert report.output is None
    exit_code, _ = call(path, "-o", tmp_path / "same.onnx", "--allow-noop")
    assert exit_code == 0
    feeds = plain_feeds()
    wanted = run(path, feeds, library=False)
    for result in both_ways(tmp_path / "same.onnx", feeds):
        assert list(result) == ["y", output]
        for made, values in wanted.items():
            assert (result[made] == values).all()


# C06: a cache, fewer queries than keys --------------------------------------------------------


def decoder() -> ModelProto:
    """New keys behind a cache; a triangle that begins where the cache ends."""
    nodes = [
        node("Concat", "past_k new_k", "present_k", axis=2),
        node("Concat", "past_v new_v", "present_v", axis=2),
        node("Shape", "past_k", "past_sizes"),
        node("Gather", "past_sizes two", "past"),
        node("Shape", "present_k", "sizes"),
        node("Gather", "sizes two", "total"),
        node("Range", "zero total one", "columns"),
        node("Range", "past total one", "places"),
        node("Unsqueeze", "places last", "rows"),
        node("Less", "rows columns", "later"),
        node("Where", "later low none", "bias"),
        node("Transpose", "present_k", "kt", perm=[0, 1, 3, 2]),
        PRODUCT,
        node("Mul", "raw c", "scaled"),
        node("Add", "scaled bias", "z"),
        node("Softmax", "z", "p", axis=-1),
        node("MatMul", "p present_v", "y"),
    ]
    lengths = {"q": "s", "past_k": "p", "past_v": "p", "new_k": "s", "new_v": "s"}
    inputs = [(name, FLOAT, [1, 4, length, 8]) for name, length in lengths.items()]
    outputs = [(name, FLOAT, [1, 4, name, 8]) for name in ("y", "present_k", "present_v")]
    stored = [C, tensor("low", -np.inf), tensor("none", 0.0), tensor("last", [-1], I64)]
    stored += [tensor(name, i, I64) for i, name in enumerate(("zero", "one", "two"))]
    return build(nodes, inputs, outputs, stored)


def test_c06_a_cache(tmp_path: Path) -> None:
    output = rewritten(decoder(), tmp_path)
    rng = np.random.default_rng(0)
    for s, p in [(4, 13), (1, 16), (1, 0), (17, 0)]:
        lengths = {"q": s, "past_k": p, "past_v": p, "new_k": s, "new_v": s}
        feeds: dict[str, Array] = {
            name: rng.standard_normal((1, 4, length, 8)).astype(np.float32)
            for name, length in lengths.items()
        }
        key, value = (np.concatenate([feeds[f"past_{n}"], feeds[f"new_{n}"]], 2) for n in "kv")
        bias = np.where(np.tri(s, s + p, p, dtype=bool), 0.0, -np.inf)
        for result in both_ways(output, feeds):
            assert (result["present_k"] == key).all()
            assert (result["present_v"] == value).all()
            close(result["y"], attend(feeds["q"], key, value, 0.25, bias), EXACT)


# C09: keys and values shared by heads ---------------------------------------------------------


def repeated(how: str, value_dim: int) -> ModelProto:
    nodes = []
    for name, dim in (("k", "dim"), ("v", "value_dim")):
        if how == "expand":
            nodes += [
                node("Unsqueeze", f"{name} two", f"{name}5"),
                node("Expand", f"{name}5 five", f"{name}e"),
                node("Concat", f"zero heads minus {dim}", f"{name}s", axis=0),
                node("Reshape", f"{name}e {name}s", f"{name}r"),
            ]
        elif how == "tile":
            nodes += [node("Tile", f"{name} tiles", f"{name}r")]
        else:
            nodes += [node("Identity", name, f"{name}r")]
    nodes += [node("Transpose", "kr", "kt", perm=[0, 1, 3, 2]), PRODUCT]
    nodes += [node("Mul", "raw c", "z"), node("Softmax", "z", "p", axis=-1)]
    nodes += [node("MatMul", "p vr", "y")]
    kv = 1 if how == "broadcast" else 2
    inputs: list[Value] = [("q", FLOAT, [1, 8, "s", 8]), ("k", FLOAT, [1, kv, "s", 8])]
    inputs += [("v", FLOAT, [1, kv, "s", value_dim])]
    ints = {"two": [2], "five": [1, 2, 4, 1, 1], "zero": [0], "heads": [8], "minus": [-1]}
    ints |= {"dim": [8], "value_dim": [value_dim], "tiles": [1, 4, 1, 1]}
    stored = [C, *(tensor(name, value, I64) for name, value in ints.items())]
    return build(nodes, inputs, [("y", FLOAT, [1, 8, "s", value_dim])], stored)


@pytest.mark.parametrize("value_dim", [8, 16])
@pytest.mark.parametrize("how", ["expand", "tile", "broadcast"])
def test_c09_heads_that_share(how: str, value_dim: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kv = 1 if how == "broadcast" else 2
    shapes = {"q": (1, 8, 20, 8), "k": (1, kv, 20, 8), "v": (1, kv, 20, value_dim)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    model = repeated(how, value_dim)
    assert only_site(model, tmp_path).group == (4 if how == "expand" else 1)
    heads = {"expand": np.arange(8) // 4, "tile": np.arange(8) % 2, "broadcast": np.zeros(8, int)}
    key, value = (feeds[name][:, heads[how]] for name in "kv")
    output = rewritten(model, tmp_path)
    for result in both_ways(output, feeds):
        close(result["y"], attend(feeds["q"], key, value, 0.25), EXACT)
    left = [n.op_type for n in onnx.load(output).graph.node]
    assert how != "expand" or "Expand" not in left
