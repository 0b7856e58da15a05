"""Every family of spellings is found, and its replacement computes the truth at two sizes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
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
    build,
    node,
    products,
    rank,
    save,
    softmax,
    tensor,
)
from onnx import ModelProto, NodeProto, TensorProto, helper
from running import codes, found, only_site, optimized, rewritten

from sparsify import runtime

EXACT = 2e-5
SIZES = ((2, 20, 24), (3, 7, 9))
"""Batch, queries and keys of each run; "n" counts batch times 4."""

Feeds = Mapping[str, Array]
Truth = Callable[[Feeds], Array]
INT = TensorProto.INT64
I64 = np.int64


def drawn(model: ModelProto, batch: int, s: int, t: int) -> dict[str, Array]:
    """Inputs of a model: normal numbers, and masks that leave every row its first key."""
    rng = np.random.default_rng(batch)
    named = {"b": batch, "s": s, "t": t, "n": 4 * batch}
    feeds = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [named[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        kind = value.type.tensor_type.elem_type
        if kind == BOOL or value.name == "ones":
            keep = rng.random(shape) < 0.7
            keep[..., 0] = True
            feeds[value.name] = keep.astype(helper.tensor_dtype_to_np_dtype(kind))
        else:
            values = np.asarray(rng.standard_normal(shape))
            feeds[value.name] = values.astype(helper.tensor_dtype_to_np_dtype(kind))
    return feeds


def wide(feeds: Feeds) -> dict[str, Array]:
    return {name: x if x.dtype == np.bool_ else x.astype(np.float64) for name, x in feeds.items()}


def agrees(
    model: ModelProto,
    truth: Truth,
    folder: Path,
    *,
    tolerance: float = EXACT,
    sizes: Sequence[tuple[int, int, int]] = SIZES,
) -> None:
    """All attentions of the model are replaced, and the output "y" is the truth at each size."""
    output = rewritten(model, folder)
    left = [n.op_type for n in onnx.load(output).graph.node]
    assert "Softmax" not in left
    for library in (False, True):
        session = runtime.session(output, library=library, threads=1)
        for size in sizes:
            feeds = drawn(model, *size)
            got, wanted = runtime.run(session, feeds)["y"], truth(wide(feeds))
            assert got.shape == wanted.shape
            assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max()


def with_contrib(model: ModelProto) -> ModelProto:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


SQUARE: tuple[Value, ...] = tuple((name, FLOAT, ["b", 4, "s", 16]) for name in "qkv")


def scaled_nodes() -> list[NodeProto]:
    return [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "scaled"),
    ]


def tail(scores: str, axis: int = -1) -> list[NodeProto]:
    return [
        node("Softmax", scores, "p", name="softmax", axis=axis),
        node("MatMul", "p v", "y"),
    ]


def right_or_refused(
    model: ModelProto, truth: Truth, folder: Path, *, sizes: Sequence[tuple[int, int, int]]
) -> None:
    if found(model, folder).sites:
        agrees(model, truth, folder, sizes=sizes)


# Einsum --------------------------------------------------------------------------------------

LETTERS: dict[str, int | str] = {"b": "b", "s": "s", "t": "t", "h": 4, "k": 2, "g": 3, "d": 16}
LETTERS |= {"e": 8, "w": 3, "n": "n"}

EINSUMS = {
    "heads before lengths": ("bhsd,bhtd->bhst", "bhst,bhtd->bhsd", "qk", "pv"),
    "lengths before heads": ("bshd,bthd->bhst", "bhst,bthd->bshd", "qk", "pv"),
    "keys stand first": ("bthd,bshd->bhst", "bhst,bthd->bshd", "kq", "pv"),
    "values stand first": ("bhsd,bhtd->bhst", "bhtd,bhst->bhsd", "qk", "vp"),
    "batch in the middle": ("sbhd,tbhd->bhst", "bhst,tbhd->sbhd", "qk", "pv"),
    "keys transposed": ("bhsd,bhdt->bhst", "bhst,bhet->bhse", "qk", "pv"),
    "heads outside": ("bhsd,bhtd->hbst", "hbst,bhte->bhse", "qk", "pv"),
    "output transposed": ("bhsd,bhtd->bhst", "bhst,bhte->bhes", "qk", "pv"),
    "one key head": ("bhsd,btd->bhst", "bhst,btd->bhsd", "qk", "pv"),
    "one key head, lengths first": ("bshd,btd->bhst", "bhst,bte->bshe", "qk", "pv"),
    "groups of heads": ("bkgsd,bktd->bkgst", "bkgst,bktd->bkgsd", "qk", "pv"),
    "groups of heads, lengths first": ("bskgd,btkd->bkgst", "bkgst,btkd->bskgd", "qk", "pv"),
    "windows": ("bwhsd,bwhtd->bwhst", "bwhst,bwhtd->bwhsd", "qk", "pv"),
    "heads folded": ("nsd,ntd->nst", "nst,ntd->nsd", "qk", "pv"),
    "nothing but lengths": ("sd,td->st", "st,td->sd", "qk", "pv"),
    "spaces": ("b h s d, b h t d -> b h s t", "bhst , bhtd -> bhsd", "qk", "pv"),
}
"""Equations of scores and values, and the order of their operands."""


def einsum_inputs(equation: str, names: str) -> Iterator[Value]:
    terms = equation.replace(" ", "").split("->")[0].split(",")
    for name, term in zip(names, terms, strict=True):
        if name != "p":
            yield name, FLOAT, [LETTERS[letter] for letter in term]


def einsum_model(scores: str, values: str, first: str, second: str) -> ModelProto:
    nodes = [
        node("Einsum", " ".join(first), "raw", equation=scores),
        node("Mul", "raw c", "z"),
        node("Softmax", "z", "p", axis=-1),
        node("Einsum", " ".join(second), "y", equation=values),
    ]
    inputs = [*einsum_inputs(scores, first), *einsum_inputs(values, second)]
    shape = rank(len(values.replace(" ", "").split("->")[1]))
    return build(nodes, inputs, [("y", FLOAT, shape)], [C])


@pytest.mark.parametrize("name", EINSUMS)
def test_einsum(name: str, tmp_path: Path) -> None:
    scores, values, first, second = EINSUMS[name]

    def truth(x: Feeds) -> Array:
        p = softmax(0.25 * np.einsum(scores.replace(" ", ""), *(x[n] for n in first)))
        result: Array = np.einsum(values.replace(" ", ""), *({**x, "p": p}[n] for n in second))
        return result

    agrees(einsum_model(scores, values, first, second), truth, tmp_path)


UNEQUAL = {
    "one value head": ("bhsd,bhtd->bhst", "bhst,btd->bhsd"),
    "one query head": ("bsd,bhtd->bhst", "bhst,bhtd->bhsd"),
    "keys of no batch": ("bhsd,htd->bhst", "bhst,bhtd->bhsd"),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_einsum_that_stretches_an_operand_is_refused(name: str, tmp_path: Path) -> None:
    model = einsum_model(*UNEQUAL[name], "qk", "pv")
    assert codes(model, tmp_path) == ["broadcast_unsupported"]


def test_einsum_scores_of_a_matmul_of_values(tmp_path: Path) -> None:
    nodes = [
        node("Einsum", "q k", "raw", equation="bshd,bthd->bhst"),
        node("Mul", "raw c", "z"),
        node("Softmax", "z", "p", axis=-1),
        node("MatMul", "p v", "y"),
    ]
    inputs = [(n, FLOAT, ["b", "s" if n == "q" else "t", 4, 16]) for n in "qk"]
    model = build(nodes, [*inputs, QKV[2]], Y, [C])

    def truth(x: Feeds) -> Array:
        query, key = (x[n].transpose(0, 2, 1, 3) for n in "qk")
        return softmax(0.25 * products(query, key)) @ x["v"]

    agrees(model, truth, tmp_path)


# FusedMatMul ---------------------------------------------------------------------------------


@pytest.mark.parametrize("turn_v", [0, 1])
@pytest.mark.parametrize("turn_k", [0, 1])
@pytest.mark.parametrize("turn_q", [0, 1])
def test_fused_matmul(turn_q: int, turn_k: int, turn_v: int, tmp_path: Path) -> None:
    """Operands transposed by the product; `turn_k` and `turn_v` are as transB says."""
    contrib = {"domain": "com.microsoft"}
    nodes = [
        node("FusedMatMul", "q k", "z", alpha=0.25, transA=turn_q, transB=turn_k, **contrib),
        node("Softmax", "z", "p", axis=-1),
        node("FusedMatMul", "p v", "y", transB=turn_v, **contrib),
    ]
    shapes = [["b", 4, 16, "s"] if turn_q else ["b", 4, "s", 16]]
    shapes += [["b", 4, "t", 16] if turn_k else ["b", 4, 16, "t"]]
    shapes += [["b", 4, 16, "t"] if turn_v else ["b", 4, "t", 16]]
    inputs = [(name, FLOAT, shape) for name, shape in zip("qkv", shapes, strict=True)]

    def truth(x: Feeds) -> Array:
        query = np.swapaxes(x["q"], 2, 3) if turn_q else x["q"]
        key = x["k"] if turn_k else np.swapaxes(x["k"], 2, 3)
        value = np.swapaxes(x["v"], 2, 3) if turn_v else x["v"]
        return softmax(0.25 * products(query, key)) @ value

    agrees(with_contrib(build(nodes, inputs, Y)), truth, tmp_path)


# What stands between product and Softmax -----------------------------------------------------


@dataclass(frozen=True)
class Middle:
    """Nodes from the product "raw" to "z"; `means` says what they compute."""

    nodes: Sequence[NodeProto]
    means: Callable[[Array, Feeds], Array]
    inputs: Sequence[Value] = ()
    stored: Mapping[str, float] = ()  # type: ignore[assignment]

    def model(self, before: Sequence[NodeProto] = ()) -> ModelProto:
        nodes = [
            node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
            node("MatMul", "q kt", "raw"),
            *self.nodes,
            node("Softmax", "z", "p", name="softmax", axis=-1),
            node("MatMul", "p v", "y"),
        ]
        stored = [tensor(name, value) for name, value in dict(self.stored).items()]
        return build([*before, *nodes], [*QKV, *self.inputs], Y, [C, *stored])

    def truth(self, x: Feeds) -> Array:
        return softmax(self.means(x["q"] @ np.swapaxes(x["k"], 2, 3), x)) @ x["v"]


BIAS: Value = ("bias", FLOAT, ["b", 1, "s", "t"])
KEEP: Value = ("keep", BOOL, ["b", 1, "s", "t"])
ONES: Value = ("ones", FLOAT, ["b", 1, "s", "t"])
SCALE = node("Mul", "raw c", "scaled")


def capped(x: Array) -> Array:
    return 2 * np.tanh(0.25 * x / 2)


MIDDLES = {
    "softcap": Middle(
        [SCALE, node("Div", "scaled u", "a"), node("Tanh", "a", "e"), node("Mul", "e u", "z")],
        lambda raw, x: capped(raw),
        stored={"u": 2.0},
    ),
    "softcap and bias": Middle(
        [
            SCALE,
            node("Div", "scaled u", "a"),
            node("Tanh", "a", "e"),
            node("Mul", "u e", "f"),
            node("Add", "f bias", "z"),
        ],
        lambda raw, x: capped(raw) + x["bias"],
        [BIAS],
        {"u": 2.0},
    ),
    "bias subtracted": Middle(
        [SCALE, node("Sub", "scaled bias", "z")],
        lambda raw, x: 0.25 * raw - x["bias"],
        [BIAS],
    ),
    "bias before scaling": Middle(
        [node("Add", "raw bias", "a"), node("Mul", "a c", "z")],
        lambda raw, x: 0.25 * (raw + x["bias"]),
        [BIAS],
    ),
    "inverted mask subtracted": Middle(
        [
            node("Sub", "u ones", "a"),
            node("Mul", "a big", "e"),
            SCALE,
            node("Sub", "scaled e", "z"),
        ],
        lambda raw, x: 0.25 * raw - 1e4 * (1 - x["ones"]),
        [ONES],
        {"u": 1.0, "big": 1e4},
    ),
    "mask multiplied, then subtracted": Middle(
        [
            SCALE,
            node("Mul", "scaled ones", "a"),
            node("Sub", "u ones", "e"),
            node("Mul", "e big", "f"),
            node("Sub", "a f", "z"),
        ],
        lambda raw, x: 0.25 * raw * x["ones"] - 1e4 * (1 - x["ones"]),
        [ONES],
        {"u": 1.0, "big": 1e4},
    ),
    "mask multiplied, then added": Middle(
        [
            SCALE,
            node("Mul", "ones scaled", "a"),
            node("Sub", "ones u", "e"),
            node("Mul", "big e", "f"),
            node("Add", "f a", "z"),
        ],
        lambda raw, x: 0.25 * raw * x["ones"] - 1e9 * (1 - x["ones"]),
        [ONES],
        {"u": 1.0, "big": 1e9},
    ),
    "where after scaling": Middle(
        [SCALE, node("Where", "keep scaled low", "z")],
        lambda raw, x: np.where(x["keep"], 0.25 * raw, -1e4),
        [KEEP],
        {"low": -1e4},
    ),
    "where before scaling": Middle(
        [node("Where", "keep raw low", "a"), node("Mul", "a c", "z")],
        lambda raw, x: np.where(x["keep"], 0.25 * raw, -2500),
        [KEEP],
        {"low": -1e4},
    ),
    "where drops before scaling": Middle(
        [
            node("Not", "keep", "drop"),
            node("Where", "drop low raw", "a"),
            node("Mul", "a c", "z"),
        ],
        lambda raw, x: np.where(x["keep"], 0.25 * raw, -np.inf),
        [KEEP],
        {"low": -np.inf},
    ),
    "where and its fill expanded": Middle(
        [
            SCALE,
            node("Shape", "scaled", "size"),
            node("Expand", "low size", "fill"),
            node("Where", "keep scaled fill", "z"),
        ],
        lambda raw, x: np.where(x["keep"], 0.25 * raw, LOWEST),
        [KEEP],
        {"low": LOWEST},
    ),
    "logits scaled by head": Middle(
        [node("Mul", "raw factor", "a"), node("Add", "a bias", "z")],
        lambda raw, x: raw * x["factor"] + x["bias"],
        [("factor", FLOAT, [4, 1, 1]), BIAS],
    ),
    "logits scaled by query": Middle(
        [SCALE, node("Mul", "factor scaled", "z")],
        lambda raw, x: 0.25 * raw * x["factor"],
        [("factor", FLOAT, ["s", 1])],
    ),
    "logits scaled by batch": Middle(
        [SCALE, node("Mul", "factor scaled", "z")],
        lambda raw, x: 0.25 * raw * x["factor"],
        [("factor", FLOAT, ["b", 1, 1, 1])],
    ),
    "logits scaled by a number given": Middle(
        [SCALE, node("Mul", "scaled factor", "z")],
        lambda raw, x: 0.25 * raw * x["factor"],
        [("factor", FLOAT, [])],
    ),
    "logits divided by head": Middle(
        [SCALE, node("Div", "scaled factor", "z")],
        lambda raw, x: 0.25 * raw / x["factor"],
        [("factor", FLOAT, [4, 1, 1])],
    ),
    "a number given added": Middle(
        [SCALE, node("Add", "scaled moved", "z")],
        lambda raw, x: 0.25 * raw + x["moved"],
        [("moved", FLOAT, [])],
    ),
    "one condition for all": Middle(
        [SCALE, node("Where", "whole scaled low", "z")],
        lambda raw, x: np.where(x["whole"], 0.25 * raw, LOWEST),
        [("whole", BOOL, [1])],
        {"low": LOWEST},
    ),
    "largest subtracted": Middle(
        [
            SCALE,
            node("ReduceMax", "scaled", "top", axes=[-1], keepdims=1),
            node("Sub", "scaled top", "z"),
        ],
        lambda raw, x: 0.25 * raw,
    ),
    "idle cast": Middle(
        [node("Cast", "raw", "a", to=FLOAT), node("Mul", "a c", "e"), node("Cast", "e", "z", to=1)],
        lambda raw, x: 0.25 * raw,
    ),
    "identities": Middle(
        [node("Identity", "raw", "a"), node("Mul", "a c", "e"), node("Dropout", "e", "z")],
        lambda raw, x: 0.25 * raw,
    ),
    "clamped from below": Middle(
        [SCALE, node("Add", "scaled bias", "a"), node("Max", "a low", "z")],
        lambda raw, x: 0.25 * raw + x["bias"],
        [BIAS],
        {"low": LOWEST},
    ),
    "clamped from above": Middle(
        [SCALE, node("Min", "u scaled", "z")], lambda raw, x: 0.25 * raw, stored={"u": 5e4}
    ),
    "clipped": Middle(
        [SCALE, node("Clip", "scaled low high", "z")],
        lambda raw, x: 0.25 * raw,
        stored={"low": -5e4, "high": 5e4},
    ),
    "clipped below only": Middle(
        [SCALE, node("Clip", "scaled low", "z")], lambda raw, x: 0.25 * raw, stored={"low": -5e4}
    ),
    "two products": Middle(
        [
            node("MatMul", "q2 r", "relative"),
            node("Add", "relative raw", "sum"),
            node("Mul", "sum c", "z"),
        ],
        lambda raw, x: 0.25 * (raw + x["q2"] @ x["r"]),
        [("q2", FLOAT, ["b", 4, "s", 8]), ("r", FLOAT, ["b", 4, 8, "t"])],
    ),
}


@pytest.mark.parametrize("name", MIDDLES)
def test_what_stands_between(name: str, tmp_path: Path) -> None:
    middle = MIDDLES[name]
    agrees(middle.model(), middle.truth, tmp_path)


def test_softcap_and_scale_are_told_apart(tmp_path: Path) -> None:
    site = only_site(MIDDLES["softcap and bias"].model(), tmp_path)
    assert (site.scale, site.softcap) == (pytest.approx(0.25), pytest.approx(2.0))


@pytest.mark.parametrize("name", [name for name in MIDDLES if name.startswith("cl")])
def test_a_clamp_is_noted(name: str, tmp_path: Path) -> None:
    site = only_site(MIDDLES[name].model(), tmp_path)
    assert any(note.startswith("clamp") for note in site.notes)


NEAR = {
    "below": [node("Max", "scaled low", "z")],
    "above": [node("Min", "scaled high", "z")],
    "both": [node("Clip", "scaled low high", "z")],
    "only one of both": [node("Clip", "scaled far high", "z")],
    "before scaling": [node("Max", "raw low", "a"), node("Mul", "a c", "z")],
    "the wrong way round": [node("Max", "scaled beyond", "z")],
}


@pytest.mark.parametrize("name", NEAR)
def test_near_clamps_are_refused(name: str, tmp_path: Path) -> None:
    stored = {"low": -2.0, "high": 2.0, "far": -1e5, "beyond": 1e5}
    middle = Middle([SCALE, *NEAR[name]], lambda raw, x: raw, stored=stored)
    wanted = "proof_failed" if name == "the wrong way round" else "scores_unknown"
    assert codes(middle.model(), tmp_path) == [wanted]


# Ranks ---------------------------------------------------------------------------------------


def split_by_hidden(heads: int = 4, *, mask: str = "four") -> ModelProto:
    """A module over hidden states: `[b*h, s, d]` products, all Reshape targets from Shape(x).

    `mask` says on which view of the scores it is added.
    """
    rng = np.random.default_rng(0)
    weights = [tensor(f"w{n}", rng.standard_normal((64, 64)) / 8) for n in "qkv"]
    ints = {"i0": 0, "i1": 1, "heads": heads, "dim": 64 // heads, "width": 64}
    stored = [tensor(name, [value], I64) for name, value in ints.items()]
    nodes = [
        node("Shape", "x", "size"),
        node("Gather", "size i0", "batch"),
        node("Gather", "size i1", "length"),
        node("Mul", "batch heads", "folds"),
        node("Concat", "batch length heads dim", "apart", axis=0),
        node("Concat", "folds length dim", "folded", axis=0),
        node("Concat", "batch heads length length", "four", axis=0),
        node("Concat", "folds length length", "three", axis=0),
        node("Concat", "batch heads length dim", "result", axis=0),
        node("Concat", "batch length width", "joined", axis=0),
    ]
    for n in "qkv":
        nodes += [
            node("MatMul", f"x w{n}", f"{n}0"),
            node("Reshape", f"{n}0 apart", f"{n}1"),
            node("Transpose", f"{n}1", f"{n}2", perm=[0, 2, 1, 3]),
            node("Reshape", f"{n}2 folded", f"{n}3"),
        ]
    nodes += [
        node("Transpose", "k3", "kt", perm=[0, 2, 1]),
        node("MatMul", "q3 kt", "raw"),
        node("Mul", "raw c", "scaled"),
    ]
    if mask == "four":
        nodes += [
            node("Reshape", "scaled four", "scores"),
            node("Add", "scores bias", "masked"),
            node("Reshape", "masked three", "z"),
        ]
    else:
        nodes += [node("Add", "scaled bias", "z")]
    nodes += [
        node("Softmax", "z", "p", axis=-1),
        node("MatMul", "p v3", "y3"),
        node("Reshape", "y3 result", "y2"),
        node("Transpose", "y2", "y1", perm=[0, 2, 1, 3]),
        node("Reshape", "y1 joined", "y"),
    ]
    shape = ["b", 1, "s", "s"] if mask == "four" else ["n", 1, "s"]
    inputs: list[Value] = [("x", FLOAT, ["b", "s", 64]), ("bias", FLOAT, shape)]
    return build(nodes, inputs, [("y", FLOAT, rank(3))], [C, *weights, *stored])


def hidden_truth(model: ModelProto) -> Truth:
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer}

    def heads(x: Array, weight: str) -> Array:
        result: Array = (x @ weights[weight]).reshape(*x.shape[:2], 4, 16).transpose(0, 2, 1, 3)
        return result

    def truth(x: Feeds) -> Array:
        query, key, value = (heads(x["x"], f"w{n}") for n in "qkv")
        bias = x["bias"].reshape(len(x["x"]), -1, *x["bias"].shape[-2:])
        y = softmax(0.25 * products(query, key) + bias) @ value
        return y.transpose(0, 2, 1, 3).reshape(x["x"].shape)

    return truth


@pytest.mark.parametrize("mask", ["four", "three"])
def test_folded_heads_with_a_mask(mask: str, tmp_path: Path) -> None:
    """The mask on a view of four dimensions (BART), or one for every head of a batch (ALiBi)."""
    model = split_by_hidden(mask=mask)
    agrees(model, hidden_truth(model), tmp_path)


FOLDED_MASKS: dict[str, Sequence[int | str]] = {
    "for every fold": ["n", "s", "t"],
    "for every key of a fold": ["n", 1, "t"],
    "for all folds": [1, "s", "t"],
    "for all folds, of rank 2": ["s", "t"],
}


@pytest.mark.parametrize("name", FOLDED_MASKS)
def test_masks_on_three_dimensions(name: str, tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "scaled"),
        node("Add", "scaled bias", "z"),
        node("Softmax", "z", "p", axis=2),
        node("MatMul", "p v", "y"),
    ]
    inputs: list[Value] = [(n, FLOAT, ["n", "s" if n == "q" else "t", 16]) for n in "qkv"]
    inputs.append(("bias", FLOAT, FOLDED_MASKS[name]))
    model = build(nodes, inputs, [("y", FLOAT, ["n", "s", 16])], [C])
    truth = lambda x: softmax(0.25 * products(x["q"], x["k"]) + x["bias"]) @ x["v"]  # noqa: E731
    agrees(model, truth, tmp_path)


WINDOWED_MASKS: dict[str, Sequence[int | str]] = {
    "for each window": [1, 4, 1, 9, 9],
    "for each window, of rank 4": [4, 1, 9, 9],
    "for each window of each batch": ["b", 4, 1, 9, 9],
    "for each batch": ["b", 1, 1, 9, 9],
    "for each head": [1, 1, 3, 9, 9],
    "for each head, of rank 3": [3, 1, 9],
}


def windowed(shape: Sequence[int | str]) -> ModelProto:
    """Scores `[b*windows, h, n, n]`, whose mask is added to `[b, windows, h, n, n]`."""
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "scaled"),
        node("Add", "scaled relative", "biased"),
        node("Reshape", "biased five", "windows"),
        node("Add", "windows bias", "masked"),
        node("Reshape", "masked four", "z"),
        node("Softmax", "z", "p", axis=-1),
        node("MatMul", "p v", "y"),
    ]
    inputs: list[Value] = [(n, FLOAT, ["n", 3, 9, 16]) for n in "qkv"]
    inputs += [("relative", FLOAT, [1, 3, 9, 9]), ("bias", FLOAT, shape)]
    stored = [tensor("five", [-1, 4, 3, 9, 9], I64), tensor("four", [-1, 3, 9, 9], I64)]
    return build(nodes, inputs, [("y", FLOAT, ["n", 3, 9, 16])], [C, *stored])


@pytest.mark.parametrize("name", WINDOWED_MASKS)
def test_windows(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name == "for each batch":
        reason = "one mask for all windows of a batch is refused"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))

    def truth(x: Feeds) -> Array:
        scores = 0.25 * products(x["q"], x["k"]) + x["relative"]
        scores = (scores.reshape(-1, 4, 3, 9, 9) + x["bias"]).reshape(-1, 3, 9, 9)
        return softmax(scores) @ x["v"]

    agrees(windowed(WINDOWED_MASKS[name]), truth, tmp_path)


def test_a_mask_of_the_outer_of_two_batches(tmp_path: Path) -> None:
    nodes = [
        *scaled_nodes(),
        node("Reshape", "scaled five", "windows"),
        node("Add", "windows bias", "masked"),
        node("Reshape", "masked four", "z"),
        *tail("z"),
    ]
    stored = [C, tensor("five", [2, -1, 4, 20, 24], I64), tensor("four", [-1, 4, 20, 24], I64)]
    model = build(nodes, [*QKV, ("bias", FLOAT, [2, 1, 1, 1, "t"])], Y, stored)

    def truth(x: Feeds) -> Array:
        scores = (0.25 * products(x["q"], x["k"])).reshape(2, -1, 4, 20, 24) + x["bias"]
        return softmax(scores.reshape(-1, 4, 20, 24)) @ x["v"]

    right_or_refused(model, truth, tmp_path, sizes=[(2, 20, 24), (6, 20, 24)])


GROUP_MASKS: dict[str, Sequence[int | str] | None] = {
    "none": None,
    "for all heads": ["b", 1, 1, "s", "t"],
    "for keys": ["b", 1, 1, 1, "t"],
    "for every head": [1, 2, 3, "s", "t"],
    "for every head of a batch": ["b", 2, 3, "s", "t"],
    "of rank 2": ["s", "t"],
    "of rank 4": [2, 3, 1, "t"],
    "for the members of groups": [1, 1, 3, "s", "t"],
    "for groups": [1, 2, 1, "s", "t"],
}


def grouped(mask: Sequence[int | str] | None, kv_heads: int = 2) -> ModelProto:
    scores = "scaled" if mask is None else "z"
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 2, 4, 3]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "scaled"),
        *([] if mask is None else [node("Add", "scaled bias", "z")]),
        node("Softmax", scores, "p", axis=-1),
        node("MatMul", "p v", "y"),
    ]
    inputs: list[Value] = [("q", FLOAT, ["b", kv_heads, 3, "s", 16])]
    inputs += [(n, FLOAT, ["b", kv_heads, 1, "t", 16]) for n in "kv"]
    inputs += [] if mask is None else [("bias", FLOAT, mask)]
    return build(nodes, inputs, [("y", FLOAT, rank(5))], [C])


def biased_truth(x: Feeds) -> Array:
    return softmax(0.25 * products(x["q"], x["k"]) + x.get("bias", 0.0)) @ x["v"]


@pytest.mark.parametrize("name", GROUP_MASKS)
def test_groups_of_heads(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name in ("for the members of groups", "for groups"):
        reason = "masks that differ along one of two head dimensions are refused"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    agrees(grouped(GROUP_MASKS[name]), biased_truth, tmp_path)


def test_one_group_of_heads(tmp_path: Path) -> None:
    agrees(grouped(["b", 1, 1, "s", "t"], kv_heads=1), biased_truth, tmp_path)


# Transposed products -------------------------------------------------------------------------


def test_values_times_transposed_probabilities(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "z"),
        node("Softmax", "z", "p", axis=-1),
        node("Transpose", "p", "pt", perm=[0, 1, 3, 2]),
        node("Transpose", "v", "vt", perm=[0, 1, 3, 2]),
        node("MatMul", "vt pt", "y"),
    ]
    model = build(nodes, QKV, [("y", FLOAT, ["b", 4, 16, "s"])], [C])
    agrees(model, lambda x: np.swapaxes(biased_truth(x), 2, 3), tmp_path)


TURNED_MASKS: dict[str, tuple[str, Sequence[int | str]]] = {
    "added": ("Add", ["b", 1, "t", "s"]),
    "added to keys": ("Add", ["t", 1]),
    "kept": ("Where", ["b", 1, "t", 1]),
}


@pytest.mark.parametrize("name", TURNED_MASKS)
def test_scores_transposed(name: str, tmp_path: Path) -> None:
    op, shape = TURNED_MASKS[name]
    mask = "sc mask" if op == "Add" else "mask sc low"
    nodes = [
        node("Transpose", "q", "qt", perm=[0, 1, 3, 2]),
        node("MatMul", "k qt", "raw"),
        node("Mul", "raw c", "sc"),
        node(op, mask, "turned"),
        node("Transpose", "turned", "z", perm=[0, 1, 3, 2]),
        node("Softmax", "z", "p", axis=-1),
        node("MatMul", "p v", "y"),
    ]
    kind = FLOAT if op == "Add" else BOOL
    # a row of the mask keeps its only element, so at least one key is left
    model = build(nodes, [*QKV, ("mask", kind, shape)], Y, [C, tensor("low", -1e9)])

    def truth(x: Feeds) -> Array:
        scores, mask = 0.25 * products(x["q"], x["k"]), np.swapaxes(x["mask"], -1, -2)
        return softmax(scores + mask if op == "Add" else np.where(mask, scores, -1e9)) @ x["v"]

    agrees(model, truth, tmp_path)


# Sinks ---------------------------------------------------------------------------------------


def sinks(*, shift: bool = True, sink: Sequence[int] = (4,), mask: bool = False) -> ModelProto:
    """A column of one logit for each head, which is cut off after the Softmax (gpt-oss)."""
    ints: dict[str, Sequence[int]] = {"i0": [0], "i2": [2], "one": [1], "four": [4], "last": [3]}
    ints |= {"shape": [1, -1, 1, 1], "end": [-1]}
    scores = "masked" if mask else "scaled"
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "scaled"),
        *([node("Add", "scaled bias", "masked")] if mask else []),
        node("Shape", "q", "size"),
        node("Gather", "size i0", "batch"),
        node("Gather", "size i2", "rows"),
        node("Concat", "batch four rows one", "target", axis=0),
        node("Reshape", "sink shape", "column"),
        node("Expand", "column target", "wide"),
        node("Concat", f"{scores} wide", "both", axis=-1),
        *([node("ReduceMax", "both", "top", axes=[-1]), node("Sub", "both top", "moved")] * shift),
        node("Softmax", "moved" if shift else "both", "p0", axis=-1),
        node("Slice", "p0 i0 end last", "p"),
        node("MatMul", "p v", "y"),
    ]
    inputs = [*QKV, ("sink", FLOAT, sink), *([BIAS] if mask else [])]
    stored = [tensor(name, value, I64) for name, value in ints.items()]
    return build(nodes, inputs, Y, [C, *stored])


def sinks_truth(x: Feeds) -> Array:
    scores = 0.25 * products(x["q"], x["k"]) + x.get("bias", 0.0)
    column = np.broadcast_to(x["sink"].reshape(1, 4, 1, 1), (*scores.shape[:3], 1))
    return softmax(np.concatenate([scores, column], -1))[..., :-1] @ x["v"]


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("sink", [(4,), (1, 4, 1, 1)])
@pytest.mark.parametrize("mask", [False, True])
def test_sinks(shift: bool, sink: Sequence[int], mask: bool, tmp_path: Path) -> None:
    agrees(sinks(shift=shift, sink=sink, mask=mask), sinks_truth, tmp_path)


# After the Softmax ---------------------------------------------------------------------------


def zeroed(fill: float, condition: str) -> ModelProto:
    """Dropped scores are filled, and their probabilities set to zero by `condition` (DeBERTa)."""
    nodes = [
        node("Not", "keep", "drop"),
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "scaled"),
        node("Where", "drop low scaled", "z"),
        node("Softmax", "z", "p0", name="softmax", axis=-1),
        node("Where", f"{condition} zero p0", "p"),
        node("MatMul", "p v", "y"),
    ]
    inputs = [*QKV, KEEP, ("other", BOOL, ["b", 1, "s", "t"])]
    return build(nodes, inputs, Y, [C, tensor("low", fill), tensor("zero", 0.0)])


def zeroed_truth(x: Feeds) -> Array:
    scores = np.where(x["keep"], 0.25 * products(x["q"], x["k"]), -np.inf)
    return softmax(scores, guard=True) @ x["v"]


FILLS = [-np.inf, LOWEST, -1e9, -1e4]


@pytest.mark.parametrize("fill", FILLS)
def test_the_same_condition_zeroes_probabilities(fill: float, tmp_path: Path) -> None:
    agrees(zeroed(fill, "drop"), zeroed_truth, tmp_path)


@pytest.mark.parametrize("fill", FILLS)
def test_zeroed_rows_without_keys_are_zero(fill: float, tmp_path: Path) -> None:
    model = zeroed(fill, "drop")
    output = rewritten(model, tmp_path)
    feeds = drawn(model, 2, 20, 24)
    feeds["keep"][0, :, :5] = False
    for library in (False, True):
        session = runtime.session(output, library=library, threads=1)
        got, wanted = runtime.run(session, feeds)["y"], zeroed_truth(wide(feeds))
        assert (wanted[0, :, :5] == 0).all()
        assert np.abs(got - wanted).max() <= EXACT


def test_another_condition_zeroes_probabilities(tmp_path: Path) -> None:
    assert codes(zeroed(LOWEST, "other"), tmp_path) == ["probabilities_masked"]


def test_a_guard_with_a_mask(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "scaled"),
        node("Where", "keep scaled low", "z"),
        node("Softmax", "z", "p0", axis=-1),
        node("IsNaN", "p0", "nan"),
        node("Where", "nan zero p0", "p"),
        node("MatMul", "p v", "y"),
    ]
    stored = [C, tensor("low", -np.inf), tensor("zero", 0.0)]
    model = build(nodes, [*QKV, KEEP], Y, stored)
    assert only_site(model, tmp_path).guarded
    agrees(model, zeroed_truth, tmp_path)


# Shapes of scores ----------------------------------------------------------------------------


def five_dimensions() -> list[NodeProto]:
    nodes = [node("Reshape", f"{name} five", f"{name}5") for name in "qkv"]
    nodes += [node("Transpose", "k5", "kt", perm=[0, 1, 2, 4, 3])]
    nodes += [node("MatMul", "q5 kt", "raw"), node("Mul", "raw c", "z")]
    nodes += [node("Softmax", "z", "p", axis=-1), node("MatMul", "p v5", "y5")]
    return [*nodes, node("Reshape", "y5 four", "y"), node("Shape", "z", "size")]


SHAPES = {
    "turned": [
        node("Transpose", "q", "qt", perm=[0, 1, 3, 2]),
        node("MatMul", "k qt", "raw"),
        node("Shape", "raw", "size"),
        node("Transpose", "raw", "turned", perm=[0, 1, 3, 2]),
        node("Mul", "turned c", "z"),
        *tail("z"),
    ],
    "of two of them": [*scaled_nodes(), node("Shape", "raw", "size", start=2), *tail("scaled")],
    "of probabilities": [*scaled_nodes(), *tail("scaled"), node("Shape", "p", "size", end=-1)],
    "five dimensions": five_dimensions(),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_of_scores_stay(name: str, tmp_path: Path) -> None:
    stored = [C, tensor("five", [-1, 1, 4, 20, 16], I64), tensor("four", [-1, 4, 20, 16], I64)]
    inputs = SQUARE if name == "five dimensions" else QKV
    length = 20 if name == "five dimensions" else 24
    model = build(SHAPES[name], inputs, [*Y, ("size", INT, rank(1))], stored)
    shapes_stay(model, (2, 20, length), tmp_path)


def test_the_shape_of_scores_with_sinks_stays(tmp_path: Path) -> None:
    model = sinks()
    model.graph.node.append(node("Shape", "both", "sizes"))
    model.graph.output.append(helper.make_tensor_value_info("sizes", INT, [4]))
    shapes_stay(model, (2, 20, 24), tmp_path)


def shapes_stay(model: ModelProto, sizes: tuple[int, int, int], folder: Path) -> None:
    optimized(save(model, folder), folder / "out.onnx")
    if not (folder / "out.onnx").exists():
        return
    feeds = drawn(model, *sizes)
    wanted = runtime.run(runtime.session(folder / "m.onnx", library=False, threads=1), feeds)
    for library in (False, True):
        got = runtime.run(runtime.session(folder / "out.onnx", library=library, threads=1), feeds)
        for name, values in wanted.items():
            assert got[name].shape == values.shape
            assert np.abs(got[name] - values).max() <= EXACT


# Quantised, and of other types ---------------------------------------------------------------


def fake(source: str, result: str, scale: str = "step", zero: str = "middle") -> list[NodeProto]:
    """A QuantizeLinear and the DequantizeLinear that undoes it."""
    return [
        node("QuantizeLinear", f"{source} {scale} {zero}", f"{result}_quantized"),
        node("DequantizeLinear", f"{result}_quantized {scale} {zero}", result),
    ]


QUANTISED = [
    C,
    tensor("step", 1 / 8),
    tensor("fine", 1 / 255),
    tensor("middle", 1 << 15, np.uint16),
    tensor("bottom", 0, np.uint16),
    tensor("other", 1 / 4),
]


def quantised(*, inside: bool, around: bool) -> ModelProto:
    """Fake quantisation between all operators, or only of operands and result."""
    nodes = []
    for name in "qkv":
        nodes += fake(name, f"{name}1") if around else [node("Identity", name, f"{name}1")]
    nodes += [node("Transpose", "k1", "kt", perm=[0, 1, 3, 2]), node("MatMul", "q1 kt", "raw")]
    nodes += fake("raw", "raw1") if inside else [node("Identity", "raw", "raw1")]
    nodes += [node("Mul", "raw1 c", "scaled")]
    nodes += fake("scaled", "z") if inside else [node("Identity", "scaled", "z")]
    nodes += [node("Softmax", "z", "p", name="softmax", axis=-1)]
    nodes += fake("p", "p1", "fine", "bottom") if inside else [node("Identity", "p", "p1")]
    nodes += [node("MatMul", "p1 v1", "y1")]
    nodes += fake("y1", "y") if around else [node("Identity", "y1", "y")]
    return build(nodes, QKV, Y, QUANTISED, opset=21)


def rounded(x: Array) -> Array:
    return np.round(x * 8) / 8


def test_quantised_operands_stay_quantised(tmp_path: Path) -> None:
    def truth(x: Feeds) -> Array:
        return rounded(biased_truth({name: rounded(x[name]) for name in "qkv"}))

    model = quantised(inside=False, around=True)
    assert only_site(model, tmp_path).notes == ()
    # a sum that lies near the middle of two steps may be rounded either way
    agrees(model, truth, tmp_path, tolerance=0.2)


@pytest.mark.parametrize("around", [False, True])
def test_quantised_scores_are_found_with_a_note(around: bool, tmp_path: Path) -> None:
    """What is left out is the rounding: the result is nearer to the truth than the original."""

    def truth(x: Feeds) -> Array:
        return biased_truth({name: rounded(x[name]) if around else x[name] for name in "qkv"})

    model = quantised(inside=True, around=around)
    site = only_site(model, tmp_path)
    assert any(note.startswith("quantization") for note in site.notes)
    agrees(model, truth, tmp_path, tolerance=0.2 if around else EXACT)


def test_dequantised_by_another_scale(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("QuantizeLinear", "raw step middle", "small"),
        node("DequantizeLinear", "small other middle", "large"),
        node("Mul", "large c", "z"),
        node("Softmax", "z", "p", axis=-1),
        node("MatMul", "p v", "y"),
    ]
    assert len(codes(build(nodes, QKV, Y, QUANTISED, opset=21), tmp_path)) == 1


def test_real_casts(tmp_path: Path) -> None:
    """Half precision around scores and probabilities in float32, masked by a float32 mask."""
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Cast", "raw", "wide", to=FLOAT),
        node("Mul", "wide c", "scaled"),
        node("Add", "scaled bias", "z"),
        node("Softmax", "z", "p0", axis=-1),
        node("Cast", "p0", "p", to=HALF),
        node("MatMul", "p v", "y"),
    ]
    inputs = [*((name, HALF, shape) for name, _, shape in QKV), BIAS]
    model = build(nodes, inputs, [("y", HALF, rank(4))], [C])
    agrees(model, biased_truth, tmp_path, tolerance=1e-2)


# Decoys --------------------------------------------------------------------------------------


def mixing(source: str, result: str) -> list[NodeProto]:
    """Heads of scores or probabilities mixed by a product (talking heads)."""
    return [
        node("Transpose", source, f"{result}1", perm=[0, 2, 3, 1]),
        node("MatMul", f"{result}1 mix", f"{result}2"),
        node("Transpose", f"{result}2", result, perm=[0, 3, 1, 2]),
    ]


KEY_FACTOR: Value = ("factor", FLOAT, ["b", 1, 1, "t"])

DECOYS: dict[str, tuple[list[NodeProto], Sequence[Value], str]] = {
    "heads mixed before": ([*scaled_nodes(), *mixing("scaled", "z"), *tail("z")], QKV, "scores"),
    "heads mixed after": (
        [
            *scaled_nodes(),
            node("Softmax", "scaled", "p0", axis=-1),
            *mixing("p0", "p"),
            node("MatMul", "p v", "y"),
        ],
        QKV,
        "not_attention",
    ),
    "heads mixed before by einsum": (
        [
            *scaled_nodes(),
            node("Einsum", "scaled mix", "z", equation="bhst,hg->bgst"),
            *tail("z"),
        ],
        QKV,
        "not_attention",
    ),
    "heads mixed after by einsum": (
        [
            *scaled_nodes(),
            node("Softmax", "scaled", "p0", axis=-1),
            node("Einsum", "p0 mix", "p", equation="bhst,hg->bgst"),
            node("MatMul", "p v", "y"),
        ],
        QKV,
        "probabilities_on_right",
    ),
    "heads summed by einsum": (
        [
            node("Einsum", "q k", "raw", equation="bhsd,bhtd->bst"),
            node("Softmax", "raw", "p", axis=-1),
            node("Einsum", "p v", "y", equation="bst,bhtd->bhsd"),
        ],
        QKV,
        "probabilities_on_right",
    ),
    "softmax over queries": ([*scaled_nodes(), *tail("scaled", 2)], QKV, "softmax_axis"),
    "softmax over heads": ([*scaled_nodes(), *tail("scaled", 1)], QKV, "softmax_axis"),
    "linear attention": (
        [
            node("Softmax", "k", "key", axis=-1),
            node("Transpose", "key", "turned", perm=[0, 1, 3, 2]),
            node("MatMul", "turned v", "context"),
            node("MatMul", "q context", "y"),
        ],
        QKV,
        "probabilities_on_right",
    ),
    "linear attention of queries": (
        [
            node("Softmax", "q", "query", axis=-1),
            node("Transpose", "k", "turned", perm=[0, 1, 3, 2]),
            node("MatMul", "turned v", "context"),
            node("MatMul", "query context", "y"),
        ],
        QKV,
        "not_attention",
    ),
    "probabilities transposed on the left": (
        [
            *scaled_nodes(),
            node("Softmax", "scaled", "p", axis=-1),
            node("Transpose", "p", "pt", perm=[0, 1, 3, 2]),
            node("MatMul", "pt v", "y"),
        ],
        SQUARE,
        "probabilities_on_right",
    ),
    "probabilities transposed by einsum": (
        [
            *scaled_nodes(),
            node("Softmax", "scaled", "p", axis=-1),
            node("Einsum", "p v", "y", equation="bhst,bhsd->bhtd"),
        ],
        SQUARE,
        "probabilities_on_right",
    ),
    "probabilities times themselves": (
        [*scaled_nodes(), node("Softmax", "scaled", "p", axis=-1), node("MatMul", "p p", "y")],
        SQUARE,
        "probabilities_shared",
    ),
    "router": (
        [
            node("MatMul", "q expert", "logits"),
            node("Softmax", "logits", "p", axis=-1),
            node("TopK", "p two", "y indices", axis=-1),
        ],
        QKV,
        "not_attention",
    ),
    "mixture": (
        [
            node("MatMul", "q expert", "logits"),
            node("Softmax", "logits", "p", axis=-1),
            node("MatMul", "p v", "y"),
        ],
        [QKV[0], ("v", FLOAT, ["b", 4, 4, 16])],
        "not_attention",
    ),
    "keys scaled apart": (
        [*scaled_nodes(), node("Mul", "scaled factor", "z"), *tail("z")],
        [*QKV, KEY_FACTOR],
        "scores_unknown",
    ),
    "scores masked by themselves": (
        [
            *scaled_nodes(),
            node("TopK", "scaled two", "top places", axis=-1),
            node("ReduceMin", "top", "least", axes=[-1]),
            node("Less", "scaled least", "drop"),
            node("Where", "drop low scaled", "z"),
            *tail("z"),
        ],
        QKV,
        "scores_shared",
    ),
    "a column cut off that was not added": (
        [
            *scaled_nodes(),
            node("Softmax", "scaled", "p0", axis=-1),
            node("Slice", "p0 first end last", "p"),
            node("MatMul", "p v", "y"),
        ],
        [*QKV[:2], ("v", FLOAT, ["b", 4, "u", 16])],
        "scores_unknown",
    ),
    "the largest of each key subtracted": (
        [
            *scaled_nodes(),
            node("ReduceMax", "scaled", "top", axes=[2]),
            node("Sub", "scaled top", "z"),
            *tail("z"),
        ],
        QKV,
        "proof_failed",
    ),
    "scores added to themselves rectified": (
        [
            *scaled_nodes(),
            node("Relu", "scaled", "up"),
            node("Add", "scaled up", "z"),
            *tail("z"),
        ],
        QKV,
        "scores_shared",
    ),
}
"""Nodes, inputs, and the code (or what it begins with) of the one refusal."""


@pytest.mark.parametrize("name", DECOYS)
def test_decoys_are_refused(name: str, tmp_path: Path) -> None:
    nodes, inputs, code = DECOYS[name]
    mix = np.eye(4)[[1, 0, 3, 2]] + 0.1
    stored = [C, tensor("mix", mix), tensor("expert", np.ones((16, 4))), tensor("low", -1e9)]
    ints = {"two": [2], "first": [0], "end": [-1], "last": [3]}
    stored += [tensor(key, value, I64) for key, value in ints.items()]
    model = build(nodes, inputs, [("y", FLOAT, rank(4))], stored)
    (refused,) = codes(model, tmp_path)
    assert refused.startswith(code)


def test_an_imported_domain_alone_is_no_sparse_model(tmp_path: Path) -> None:
    """ONNX Runtime imports every domain it knows when it saves an optimised model."""
    model = build([*scaled_nodes(), *tail("scaled")], QKV, Y, [C])
    model.opset_import.append(helper.make_opsetid("ai.sparsify", 1))
    assert only_site(model, tmp_path).scale == 0.25


@pytest.mark.parametrize(
    ("made", "code"),
    [("scaled", "scores_shared"), ("p", "probabilities_shared"), ("raw", "scores_shared")],
)
def test_what_leaves_the_graph_is_refused(made: str, code: str, tmp_path: Path) -> None:
    outputs = [*Y, (made, FLOAT, rank(4))]
    model = build([*scaled_nodes(), *tail("scaled")], QKV, outputs, [C])
    assert codes(model, tmp_path) == [code]


def test_probabilities_used_twice(tmp_path: Path) -> None:
    nodes = [*scaled_nodes(), *tail("scaled"), node("MatMul", "p w", "z")]
    inputs = [*QKV, ("w", FLOAT, ["b", 4, "t", 16])]
    model = build(nodes, inputs, [*Y, ("z", FLOAT, rank(4))], [C])
    assert codes(model, tmp_path) == ["probabilities_shared"]
