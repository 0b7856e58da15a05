"""What every walk through a graph needs: a reason to stop, and numbers hidden behind shapes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from sparsify.constants import constant, scalar
from sparsify.view import Node, Tensor, consumers, element_type, producer


@dataclass(frozen=True)
class Stop:
    """Why a walk ended without an attention: a refusal's code, a sentence, and the node."""

    code: str
    reason: str
    node: Node | None = None


def passes_through(node: Node) -> bool:
    """Whether a node hands its first input on unchanged, but perhaps for the float type."""
    if node.op == "Cast":
        types = {element_type(node.inputs[0]), element_type(node.outputs[0])}
        return types <= {1, 10, 16, None}
    return node.op in ("Identity", "Dropout")


def value_readers(tensor: Tensor) -> list[Node]:
    """The nodes that read a tensor for more than its shape."""
    return [node for node in consumers(tensor) if node.op != "Shape"]


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
    if node.op in ("Expand", "Cast", "Identity"):
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
