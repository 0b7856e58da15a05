"""What every walk through a graph needs: a reason to stop, and numbers hidden behind shapes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from sparsify.constants import constant, dims, scalar
from sparsify.view import Node, Tensor, consumers, element_type, producer


@dataclass(frozen=True)
class Stop:
    """Why a walk ended without an attention: a refusal's code, a sentence, and the node."""

    code: str
    reason: str
    node: Node | None = None


_REALS = (1, 10, 11, 16)
"""float, float16, double, bfloat16: what rounds, and keeps the meaning."""


def passes_through(node: Node) -> bool:
    """Whether a node hands its first input on unchanged, but perhaps for the float type."""
    if node.op == "Cast":
        types = {element_type(node.inputs[0]), element_type(node.outputs[0])}
        return types <= {*_REALS, None}
    return node.op in ("Identity", "Dropout")


def reshapes(node: Node) -> bool:
    """Whether a node changes only the dimensions before the last two."""
    if node.op not in ("Reshape", "Squeeze", "Unsqueeze"):
        return False
    before, after = dims(node.inputs[0]), dims(node.outputs[0])
    if before is None or after is None or min(len(before), len(after)) < 2:
        return False
    pairs = zip(before[-2:], after[-2:], strict=True)
    return not any(None not in pair and pair[0] != pair[1] for pair in pairs)


def swaps_last(node: Node) -> bool:
    """Whether a node transposes the last two dimensions and no other."""
    perm = list(node.attrs.get("perm", ())) if node.op == "Transpose" else []
    rank = len(perm)
    return rank > 1 and perm == [*range(rank - 2), rank - 1, rank - 2]


def last_axis(node: Node, axis: int | None) -> bool:
    """Whether an axis is the last one of a node's first input."""
    # where the rank is not known most have four dimensions, and the proof has the last word
    rank = len(dims(node.inputs[0]) or (None,) * 4)
    return axis in (-1, rank - 1)


def dequantized(node: Node) -> Node | None:
    """The QuantizeLinear whose result a DequantizeLinear turns back, with the same parameters."""
    quantize = producer(node.inputs[0], "QuantizeLinear") if node.op == "DequantizeLinear" else None
    if quantize is None or len(quantize.inputs) != len(node.inputs):
        return None
    pairs = zip(quantize.inputs[1:], node.inputs[1:], strict=True)
    return quantize if all(_equal(one, other) for one, other in pairs) else None


def _equal(one: Tensor, other: Tensor) -> bool:
    if one is other or one.name == other.name:
        return True
    a, b = constant(one), constant(other)
    return a is not None and b is not None and np.array_equal(a, b)


def value_readers(tensor: Tensor) -> list[Node]:
    """The nodes that read a tensor for more than its shape or its type."""
    return [node for node in consumers(tensor) if not _looks_only(node, tensor)]


def _looks_only(node: Node, tensor: Tensor) -> bool:
    return node.op == "Shape" or (node.op == "CastLike" and node.inputs[0] is not tensor)


def with_number(node: Node) -> Iterator[tuple[Tensor, float]]:
    """Each way to see a two-input node as a tensor and a number; (tensor, number)."""
    for one, other in ((0, 1), (1, 0)):
        number = scalar(node.inputs[other])
        if number is not None:
            yield node.inputs[one], number


def scaled(node: Node) -> tuple[Tensor, float] | None:
    """A Mul or Div by a number the graph fixes, as the tensor and the factor."""
    if node.op == "Mul":
        return next(with_number(node), None)
    if node.op == "Div":
        number = scalar(node.inputs[1])
        if number:
            return node.inputs[0], 1.0 / number
    return None


def fill_number(tensor: Tensor) -> float | None:
    """The number that a scalar, or a tensor filled with one number, holds."""
    number = scalar(tensor)
    if number is not None:
        return number
    node = producer(tensor)
    if node is None:
        return _uniform(tensor)
    if node.op in ("Expand", "Cast", "CastLike", "Identity"):
        return fill_number(node.inputs[0])
    if node.op == "ConstantOfShape":
        value = node.attrs.get("value")
        return 0.0 if value is None else float(np.asarray(value.values).reshape(-1)[0])
    return None


def _uniform(tensor: Tensor) -> float | None:
    value = constant(tensor) if isinstance(tensor, gs.Constant) else None
    if value is None or value.size == 0 or not (value == value.flat[0]).all():
        return None
    return float(value.flat[0])
