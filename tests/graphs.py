"""Writes small attention graphs in the spellings of exporters, with their truth in float64 numpy.

`Form` says how one attention is spelled; `model_of` writes it, `feeds_of` draws its inputs and
`truth_of` computes what it means, from the numbers alone and not from the graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Value = tuple[str, int, Sequence[int | str]]

FLOAT, HALF, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL
LOWEST = float(np.finfo(np.float32).min)

SCALES = {
    "none": 1.0,
    "mul_after": 0.25,
    "mul_const_first": 0.25,
    "div_after": 0.25,
    "two_factors": 0.125,
    "q_only": 0.25,
    "q_div": 0.25,
    "k_transposed": 0.25,
    "k_const_first": 0.25,
    "split": 0.25,
    "dynamic": 0.25,
    "odd_after": 0.37,
}
"""Each spelling of the scale, with the number that all its factors make (head_dim 16)."""

TRANSPOSES = ("last_two", "fused", "twice", "three_dims")
MASKS = ("none", "add", "add_first", "where", "where_drop", "where_then_add", "two_adds")
CASTS = ("none", "fp32_noop", "softmax_fp32")
REPEATS = ("none", "expand", "tile")


@dataclass(frozen=True)
class Form:
    """How one attention is spelled.

    With `k_transpose` "fused" or "twice" K comes as `[b, t, H, d]`, else as `[b, H, t, d]`.
    `mask_shape` names the dimensions of the mask, among b, 1, h, s and t.
    """

    scale: str = "mul_after"
    k_transpose: str = "last_two"
    mask: str = "none"
    fill: float = float("-inf")
    mask_shape: str = "b1st"
    guard: bool = False
    casts: str = "none"
    repeat: str = "none"
    identities: bool = False
    dtype: int = FLOAT
    opset: int = 17
    heads: int = 4
    dim: int = 16
    value_dim: int = 16
    symbolic: bool = True

    @property
    def kv_heads(self) -> int:
        return self.heads // 2 if self.repeat != "none" else self.heads

    @property
    def factor(self) -> float:
        return SCALES[self.scale]


class Writer:
    """Collects nodes; every method returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.stored: list[TensorProto] = []

    def op(self, op_type: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"{op_type}_{len(self.nodes)}"
        result = f"{name}:0"
        self.nodes.append(helper.make_node(op_type, inputs, [result], name=name, **attributes))
        return result

    def store(self, value: npt.ArrayLike, dtype: npt.DTypeLike) -> str:
        name = f"stored_{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name


def model_of(form: Form) -> ModelProto:
    w = Writer()
    query, key = _scaled_operands(w, form, "q", _key(w, form))
    scores = _scores(w, form, query, key)
    if form.casts == "softmax_fp32":
        scores = w.op("Cast", scores, to=FLOAT)
    elif form.casts == "fp32_noop":
        scores = w.op("Cast", scores, to=form.dtype)
    weights = w.op("Softmax", scores, name="softmax", axis=-1)
    if form.guard:
        wide = form.casts == "softmax_fp32"
        zero = w.store(0.0, np.float32 if wide else _float(form))
        weights = w.op("Where", w.op("IsNaN", weights), zero, weights)
    if form.casts == "softmax_fp32":
        weights = w.op("Cast", weights, to=form.dtype)
    if form.identities:
        weights = w.op("Identity", weights)
    value = _repeated(w, form, "v")
    w.nodes.append(helper.make_node("MatMul", [weights, value], ["y"], name="pv"))
    return build(w.nodes, _inputs(form), [("y", form.dtype, _output(form))], w.stored, form.opset)


def build(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    stored: Sequence[TensorProto] = (),
    opset: int = 17,
) -> ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        list(stored),
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="tests")


def save(model: ModelProto, folder: Path, name: str = "m.onnx") -> Path:
    path = folder / name
    onnx.save_model(model, path)
    return path


def _float(form: Form) -> Any:
    return np.float16 if form.dtype == HALF else np.float32


def _number(w: Writer, form: Form, value: float) -> str:
    return w.store(value, _float(form))


def _key(w: Writer, form: Form) -> str:
    """K^T, before a scale on it."""
    if form.k_transpose == "fused":
        return w.op("Transpose", "k", perm=[0, 2, 3, 1])
    key = w.op("Transpose", "k", perm=[0, 2, 1, 3]) if form.k_transpose == "twice" else "k"
    key = _repeated(w, form, key)
    if form.k_transpose == "three_dims":
        flat = w.op("Reshape", key, w.store([-1, 24, form.dim], np.int64))
        turned = w.op("Transpose", flat, perm=[0, 2, 1])
        return w.op("Reshape", turned, w.store([-1, form.heads, form.dim, 24], np.int64))
    return w.op("Transpose", key, perm=[0, 1, 3, 2])


def _repeated(w: Writer, form: Form, tensor: str) -> str:
    if form.repeat == "none":
        return tensor
    if form.repeat == "tile":
        return w.op("Tile", tensor, w.store([1, 2, 1, 1], np.int64))
    dim = form.value_dim if tensor == "v" else form.dim
    wide = w.op("Unsqueeze", tensor, w.store([2], np.int64))
    wide = w.op("Expand", wide, w.store([1, 1, 2, 1, 1], np.int64))
    return w.op("Reshape", wide, w.store([0, form.heads, -1, dim], np.int64))


def _scaled_operands(w: Writer, form: Form, query: str, key: str) -> tuple[str, str]:
    if form.scale == "q_only":
        return w.op("Mul", query, _number(w, form, 0.25)), key
    if form.scale == "q_div":
        return w.op("Div", query, _number(w, form, 4.0)), key
    if form.scale == "k_transposed":
        return query, w.op("Mul", key, _number(w, form, 0.25))
    if form.scale == "k_const_first":
        return query, w.op("Mul", _number(w, form, 0.25), key)
    if form.scale == "split":
        half = _number(w, form, 0.5)
        return w.op("Mul", query, half), w.op("Mul", key, half)
    if form.scale == "dynamic":
        factor = _dynamic_factor(w, form)
        return w.op("Mul", query, factor), w.op("Mul", key, factor)
    return query, key


def _dynamic_factor(w: Writer, form: Form) -> str:
    """sqrt(1 / sqrt(d)) from Shape, as the decomposition of SDPA writes it."""
    last = w.store([-1], np.int64), w.store([np.iinfo(np.int64).max], np.int64)
    size = w.op("Slice", w.op("Shape", "q"), *last)
    root = w.op("Sqrt", w.op("Cast", size, to=form.dtype))
    return w.op("Sqrt", w.op("Div", _number(w, form, 1.0), root))


def _scores(w: Writer, form: Form, query: str, key: str) -> str:
    scores = w.op("MatMul", query, key, name="qk")
    if form.identities:
        scores = w.op("Identity", scores)
    if form.scale in ("mul_after", "odd_after", "two_factors"):
        factor = {"mul_after": 0.25, "odd_after": 0.37, "two_factors": 0.5}[form.scale]
        scores = w.op("Mul", scores, _number(w, form, factor))
    if form.scale == "mul_const_first":
        scores = w.op("Mul", _number(w, form, 0.25), scores)
    if form.scale in ("div_after", "two_factors"):
        scores = w.op("Div", scores, _number(w, form, 4.0))
    return _masked(w, form, scores)


def _masked(w: Writer, form: Form, scores: str) -> str:
    if form.mask in ("where", "where_then_add"):
        scores = w.op("Where", "keep", scores, _number(w, form, form.fill))
    if form.mask == "where_drop":
        scores = w.op("Where", w.op("Not", "keep"), _number(w, form, form.fill), scores)
    if form.mask in ("add", "two_adds", "where_then_add"):
        scores = w.op("Add", scores, "bias")
    if form.mask == "add_first":
        scores = w.op("Add", "bias", scores)
    if form.mask == "two_adds":
        scores = w.op("Add", scores, "position")
    return scores


def mask_names(form: Form) -> tuple[str, ...]:
    return {
        "none": (),
        "add": ("bias",),
        "add_first": ("bias",),
        "two_adds": ("bias", "position"),
        "where": ("keep",),
        "where_drop": ("keep",),
        "where_then_add": ("keep", "bias"),
    }[form.mask]


def _inputs(form: Form) -> list[Value]:
    b, s = ("b", "s") if form.symbolic else (2, 20)
    t: int | str = "t" if form.symbolic and form.k_transpose != "three_dims" else 24
    turned = form.k_transpose in ("fused", "twice")
    key = [b, t, form.kv_heads, form.dim] if turned else [b, form.kv_heads, t, form.dim]
    named = {"b": b, "h": form.heads, "s": s, "t": t, "1": 1}
    shape = [named[letter] for letter in form.mask_shape]
    masks: dict[str, Value] = {
        "bias": ("bias", form.dtype, shape),
        "keep": ("keep", BOOL, shape),
        "position": ("position", form.dtype, [1, form.heads, s, t]),
    }
    return [
        ("q", form.dtype, [b, form.heads, s, form.dim]),
        ("k", form.dtype, key),
        ("v", form.dtype, [b, form.kv_heads, t, form.value_dim]),
        *(masks[name] for name in mask_names(form)),
    ]


def _output(form: Form) -> list[int | str]:
    return ["b", form.heads, "s", form.value_dim] if form.symbolic else [2, form.heads, 20, 16]


def feeds_of(
    form: Form, *, batch: int = 2, s: int = 20, t: int = 24, seed: int = 0
) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    sizes = {"b": batch, "h": form.heads, "s": s, "t": t, "1": 1}
    feeds: dict[str, Array] = {}
    turned = form.k_transpose in ("fused", "twice")
    kv = form.kv_heads
    shapes = {
        "q": (batch, form.heads, s, form.dim),
        "k": (batch, t, kv, form.dim) if turned else (batch, kv, t, form.dim),
        "v": (batch, kv, t, form.value_dim),
        "bias": tuple(sizes[letter] for letter in form.mask_shape),
        "keep": tuple(sizes[letter] for letter in form.mask_shape),
        "position": (1, form.heads, s, t),
    }
    for name in ("q", "k", "v", *mask_names(form)):
        if name == "keep":
            feeds[name] = rng.random(shapes[name]) < 0.7
            feeds[name][..., 0] = True
        else:
            feeds[name] = rng.standard_normal(shapes[name]).astype(_float(form))
    return feeds


def truth_of(form: Form, feeds: Mapping[str, Array]) -> Array:
    key = feeds["k"]
    if form.k_transpose in ("fused", "twice"):
        key = key.transpose(0, 2, 1, 3)
    key, value = (_repeat(form, x) for x in (key, feeds["v"]))
    bias = 0.0
    for name in ("bias", "position"):
        if name in mask_names(form):
            bias = bias + feeds[name].astype(np.float64)
    scores = form.factor * products(feeds["q"], key)
    if "keep" in feeds:
        scores = np.where(feeds["keep"], scores, form.fill)
    return softmax(scores + bias, guard=form.guard) @ value.astype(np.float64)


def _repeat(form: Form, x: Array) -> Array:
    if form.repeat == "expand":
        return np.repeat(x, 2, axis=1)
    return np.tile(x, (1, 2, 1, 1)) if form.repeat == "tile" else x


def products(query: Array, key: Array) -> Array:
    return query.astype(np.float64) @ np.swapaxes(key.astype(np.float64), -1, -2)


def softmax(scores: Array, *, guard: bool = False) -> Array:
    """Over the last axis; rows without any finite score are NaN, or 0 with `guard`."""
    with np.errstate(invalid="ignore"):
        exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
        result = exps / exps.sum(axis=-1, keepdims=True)
    return np.nan_to_num(result, nan=0.0) if guard else result


def attend(query: Array, key: Array, value: Array, scale: float, bias: Any = 0.0) -> Array:
    return softmax(scale * products(query, key) + bias) @ value.astype(np.float64)


def rank(count: int) -> list[str]:
    """The open dimensions of an output of which the tests only need to know the rank."""
    return [f"open_{axis}" for axis in range(count)]


QKV: tuple[Value, ...] = (
    ("q", FLOAT, ["b", 4, "s", 16]),
    ("k", FLOAT, ["b", 4, "t", 16]),
    ("v", FLOAT, ["b", 4, "t", 16]),
)
Y: tuple[Value, ...] = (("y", FLOAT, ["b", 4, "s", 16]),)


def node(op_type: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> NodeProto:
    """A node from space-separated names; its name is that of its first output, unless given."""
    results = outputs.split()
    name = name or f"make_{results[0]}"
    return helper.make_node(op_type, inputs.split(), results, name=name, **attributes)


def tensor(name: str, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value, dtype=dtype), name)


def plain_nodes(scores: str = "scaled") -> list[NodeProto]:
    """Transpose, product, scale by the tensor `c`, softmax over `scores`, product."""
    return [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "scaled"),
        node("Softmax", scores, "p", name="softmax", axis=-1),
        node("MatMul", "p v", "y"),
    ]


C = tensor("c", 0.25)


def plain_model(opset: int = 17) -> ModelProto:
    return build(plain_nodes(), QKV, Y, [C], opset)


def bfloat16_model() -> ModelProto:
    """The plain attention in bfloat16, a type that numpy and ONNX Runtime's CPU do not know."""
    kind = TensorProto.BFLOAT16
    inputs = [(name, kind, shape) for name, _, shape in QKV]
    outputs = [("y", kind, ["b", 4, "s", 16])]
    scale = helper.make_tensor("c", kind, [], [0.25])
    return build(plain_nodes(), inputs, outputs, [scale])


def plain_feeds(batch: int = 2, s: int = 20, t: int = 24, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    sizes = {"q": s, "k": t, "v": t}
    return {
        name: rng.standard_normal((batch, 4, size, 16)).astype(np.float32)
        for name, size in sizes.items()
    }
