"""Values and sizes that a graph fixes: small constant tensors, folded through shape arithmetic.

Exporters compute `1/sqrt(head_dim)` and reshape targets at run time from Shape. Most of those
values are fixed all the same. Arrays are float64, and NaN stands for "not fixed": it survives all
arithmetic, so one unknown dimension does not hide the others.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sparsify.model import SMALL
from sparsify.view import Node, Scope, Tensor, producer

Array = npt.NDArray[np.float64]
Dims = tuple[int | None, ...]

_DEPTH = 32

_NEAR = 8
"""How far a shape is followed through operators of several inputs."""


def constant(tensor: Tensor, depth: int = _DEPTH) -> Array | None:
    """The value of a small tensor with NaN where the graph leaves it open; None if unknown."""
    if isinstance(tensor, gs.Constant):
        return _stored(tensor)
    node = producer(tensor)
    if node is None or depth == 0:
        return None
    if node.op == "Shape":
        return _shape(node, depth)
    fold = _FOLDS.get(node.op)
    if fold is None:
        return None
    inputs = [constant(source, depth - 1) for source in node.inputs]
    if any(value is None for value in inputs):
        return None
    return _checked(fold, node, inputs)


def scalar(tensor: Tensor) -> float | None:
    """The one number in a tensor, if the graph fixes it."""
    value = constant(tensor)
    if value is None or value.size != 1 or np.isnan(value).any():
        return None
    return float(value.reshape(()))


def dims(tensor: Tensor, depth: int = _DEPTH) -> Dims | None:
    """The sizes of a tensor, None for each that is open; None if not even the rank is known."""
    if tensor.shape is not None and all(
        isinstance(size, int) and size >= 0 for size in tensor.shape
    ):
        return tuple(tensor.shape)
    node = producer(tensor)
    known = None
    if node is not None and depth > 0 and node.op in _SHAPES:
        known = _SHAPES[node.op](node, depth - 1)
    if tensor.shape is None:
        # many inputs are followed only where nothing is known: their number would multiply
        joined = _JOINED.get(node.op) if node is not None and depth > 0 else None
        return joined(node, min(depth - 1, _NEAR)) if joined is not None else known
    declared = [size if isinstance(size, int) and size >= 0 else None for size in tensor.shape]
    if known is None or len(known) != len(declared):
        return tuple(declared)
    return tuple(a if a is not None else b for a, b in zip(declared, known, strict=True))


def sizes_in(scope: Scope) -> dict[str, Dims | None]:
    """The sizes of every tensor that the nodes of a scope make or read."""
    tensors = {t.name: t for node in scope.nodes() for t in (*node.inputs, *node.outputs)}
    return {name: dims(tensor) for name, tensor in tensors.items()}


def axis_attribute(node: Node, name: str, index: int) -> list[int] | None:
    """An `axes`-like value, an attribute in old opsets and an input in new ones."""
    if name in node.attrs:
        value = node.attrs[name]
        return [int(v) for v in (value if isinstance(value, list | tuple) else [value])]
    if len(node.inputs) <= index:
        return None
    stored = constant(node.inputs[index])
    if stored is None or np.isnan(stored).any():
        return None
    return [int(v) for v in stored.reshape(-1)]


def _stored(tensor: Tensor) -> Array | None:
    if int(np.prod(tensor.shape)) > SMALL:
        return None
    try:
        return np.asarray(tensor.values, dtype=np.float64)
    except (TypeError, ValueError):  # strings and the like carry no numbers
        return None


def _shape(node: Node, depth: int) -> Array | None:
    sizes = dims(node.inputs[0], depth - 1)
    if sizes is None:
        return None
    values = np.array([np.nan if size is None else size for size in sizes], dtype=np.float64)
    return values[node.attrs.get("start", 0) : node.attrs.get("end", len(values))]


def _checked(fold: Callable[[Node, list[Any]], Any], node: Node, inputs: list[Any]) -> Array | None:
    with np.errstate(all="ignore"):
        try:
            value = np.asarray(fold(node, inputs), dtype=np.float64)
        except (IndexError, TypeError, ValueError):  # open where an index is needed, or no number
            return None
    return value if value.size <= SMALL else None


def _integers(value: Array) -> npt.NDArray[np.int64]:
    if np.isnan(value).any():
        raise ValueError("an index is open")
    return np.clip(value, -(2**62), 2**62).astype(np.int64)


def _slice(node: Node, inputs: list[Array]) -> Array:
    data, starts, ends = inputs[0], _integers(inputs[1]), _integers(inputs[2])
    axes = _integers(inputs[3]) if len(inputs) > 3 else np.arange(len(starts))
    steps = _integers(inputs[4]) if len(inputs) > 4 else np.ones(len(starts), dtype=np.int64)
    index = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[int(axis)] = slice(int(start), int(end), int(step))
    return data[tuple(index)]


def _unsqueeze(node: Node, inputs: list[Array]) -> Array:
    axes = axis_attribute(node, "axes", 1) or []
    return np.expand_dims(inputs[0], tuple(axes))


def _squeeze(node: Node, inputs: list[Array]) -> Array:
    axes = axis_attribute(node, "axes", 1)
    return np.squeeze(inputs[0], None if axes is None else tuple(axes))


def _gather(node: Node, inputs: list[Array]) -> Array:
    return np.take(inputs[0], _integers(inputs[1]), axis=node.attrs.get("axis", 0))


def _constant_node(node: Node, inputs: list[Array]) -> Any:
    value = next(iter(node.attrs.values()), None)
    stored = _stored(value) if isinstance(value, gs.Constant) else value
    if not isinstance(stored, int | float | list | np.ndarray):  # too large, text, or a reference
        raise ValueError("not a number")
    return stored


def _constant_of_shape(node: Node, inputs: list[Array]) -> Array:
    value = node.attrs.get("value")
    fill = 0.0 if value is None else float(np.asarray(value.values).reshape(-1)[0])
    return np.full(_integers(inputs[0]), fill)


def _broadcast(value: Array, shape: npt.NDArray[np.int64]) -> tuple[int, ...]:
    return np.broadcast_shapes(value.shape, tuple(int(size) for size in shape))


def _where(node: Node, inputs: list[Array]) -> Array:
    condition, one, other = inputs
    chosen = np.where(condition == 1, one, other)
    return np.where(np.isnan(condition) & (one != other), np.nan, chosen)


_FOLDS: dict[str, Callable[[Node, list[Any]], Any]] = {
    "Add": lambda node, x: x[0] + x[1],
    "Cast": lambda node, x: x[0],
    "ConstantOfShape": _constant_of_shape,
    "Concat": lambda node, x: np.concatenate(x, axis=node.attrs.get("axis", 0)),
    "Constant": _constant_node,
    "Equal": lambda node, x: np.where(np.isnan(x[0] + x[1]), np.nan, x[0] == x[1]),
    "Expand": lambda node, x: np.broadcast_to(x[0], _broadcast(x[0], _integers(x[1]))),
    "Div": lambda node, x: x[0] / x[1],
    "Gather": _gather,
    "Identity": lambda node, x: x[0],
    "Mul": lambda node, x: x[0] * x[1],
    "Neg": lambda node, x: -x[0],
    "Pow": lambda node, x: x[0] ** x[1],
    "Reciprocal": lambda node, x: 1.0 / x[0],
    "Slice": _slice,
    "Sqrt": lambda node, x: np.sqrt(x[0]),
    "Squeeze": _squeeze,
    "Sub": lambda node, x: x[0] - x[1],
    "Reshape": lambda node, x: np.reshape(x[0], _integers(x[1])),
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}


def _reshape_dims(node: Node, depth: int) -> Dims | None:
    target = constant(node.inputs[1], depth)
    if target is None:
        return None
    return tuple(None if np.isnan(size) or size <= 0 else int(size) for size in target)


def _transpose_dims(node: Node, depth: int) -> Dims | None:
    source = dims(node.inputs[0], depth)
    perm = node.attrs.get("perm")
    if source is None:
        return None if perm is None else (None,) * len(perm)
    return tuple(source[axis] for axis in (perm or reversed(range(len(source)))))


def _same_dims(node: Node, depth: int) -> Dims | None:
    return dims(node.inputs[0], depth)


def _squeeze_dims(node: Node, depth: int) -> Dims | None:
    source, axes = dims(node.inputs[0], depth), axis_attribute(node, "axes", 1)
    if source is None or axes is None:
        return None
    gone = {axis % len(source) for axis in axes}
    return tuple(size for axis, size in enumerate(source) if axis not in gone)


def _slice_dims(node: Node, depth: int) -> Dims | None:
    source = dims(node.inputs[0], depth)
    axes = axis_attribute(node, "axes", 3)
    if source is None or axes is None:
        return None
    cut = {axis % len(source) for axis in axes}
    return tuple(None if axis in cut else size for axis, size in enumerate(source))


def _broadcast_dims(node: Node, depth: int) -> Dims | None:
    shapes = [dims(tensor, depth) for tensor in node.inputs if tensor.name]
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    rank = max(map(len, known))
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(_stretched(sizes) for sizes in zip(*padded, strict=True))


def _stretched(sizes: tuple[int | None, ...]) -> int | None:
    """The size that several stretch to: an open one may be 1, or any other."""
    large = [size for size in sizes if size is not None and size != 1]
    return large[0] if large else None if None in sizes else 1


def _product_dims(node: Node, depth: int) -> Dims | None:
    shapes = [dims(tensor, depth) for tensor in node.inputs[:2]]
    if shapes[0] is None or shapes[1] is None or min(map(len, shapes)) < 2:  # type: ignore[arg-type]
        return None
    rank = max(len(shapes[0]), len(shapes[1]))
    leads = [(1,) * (rank - len(shape)) + shape[:-2] for shape in shapes if shape is not None]
    lead = tuple(_stretched(sizes) for sizes in zip(*leads, strict=True))
    return (*lead, shapes[0][-2], shapes[1][-1])


_JOINED: dict[str, Callable[[Node, int], Dims | None]] = {
    **dict.fromkeys(("Add", "Div", "Max", "Min", "Mul", "Sub", "Where"), _broadcast_dims),
    "MatMul": _product_dims,
}

_SHAPES: dict[str, Callable[[Node, int], Dims | None]] = {
    **dict.fromkeys(("Clip", "Dropout", "IsNaN", "Neg", "Tanh"), _same_dims),
    "Cast": _same_dims,
    "Identity": _same_dims,
    "Reshape": _reshape_dims,
    "Slice": _slice_dims,
    "Softmax": _same_dims,
    "Squeeze": _squeeze_dims,
    "Transpose": _transpose_dims,
}
