"""Integers and booleans of a graph behind Python's operators, so that a rule can write nodes."""

import operator
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np

from sparsify.builder import Builder
from sparsify.errors import SparsifyError
from sparsify.pattern import Blocks, Value


@dataclass(frozen=True, eq=False)
class GraphValue:
    """The tensor `name`, int64 or bool; every operator writes one node (`//` writes three).

    What a graph cannot follow (`==`, `if`, `and`) raises instead of answering wrongly.
    """

    builder: Builder
    name: str

    # numpy integers on the left then leave the operation to this class.
    __array_ufunc__: ClassVar[None] = None

    def _operand(self, other: "Value | int") -> str:
        if isinstance(other, GraphValue):
            return other.name
        try:
            number = operator.index(other)  # type: ignore[arg-type]
        except TypeError:
            raise SparsifyError(
                f"a rule mixes its positions with a {type(other).__name__}; "
                "use only integers, positions and what was computed from them"
            ) from None
        return self.builder.constant(number, np.int64)

    def _write(self, op_type: str, other: "Value | int") -> "GraphValue":
        return GraphValue(self.builder, self.builder.op(op_type, self.name, self._operand(other)))

    def __add__(self, other: "Value | int") -> "GraphValue":
        return self._write("Add", other)

    def __radd__(self, other: int) -> "GraphValue":
        return self._write("Add", other)

    def __sub__(self, other: "Value | int") -> "GraphValue":
        return self._write("Sub", other)

    def __rsub__(self, other: int) -> "GraphValue":
        left = GraphValue(self.builder, self._operand(other))
        return left._write("Sub", self)

    def __mul__(self, other: "Value | int") -> "GraphValue":
        return self._write("Mul", other)

    def __rmul__(self, other: int) -> "GraphValue":
        return self._write("Mul", other)

    def __floordiv__(self, other: "Value | int") -> "GraphValue":
        # ONNX's Div truncates; what Mod (the sign of the divisor) leaves over makes it exact.
        return (self - self._write("Mod", other))._write("Div", other)

    def __le__(self, other: "Value | int") -> "GraphValue":
        return self._write("LessOrEqual", other)

    def __lt__(self, other: "Value | int") -> "GraphValue":
        return self._write("Less", other)

    def __ge__(self, other: "Value | int") -> "GraphValue":
        return self._write("GreaterOrEqual", other)

    def __gt__(self, other: "Value | int") -> "GraphValue":
        return self._write("Greater", other)

    def __and__(self, other: "Value") -> "GraphValue":
        return self._write("And", other)

    def __or__(self, other: "Value") -> "GraphValue":
        return self._write("Or", other)

    def __eq__(self, other: object) -> NoReturn:
        raise SparsifyError("a rule uses == or !=; write it with <= and >=")

    def __bool__(self) -> NoReturn:
        raise SparsifyError("a rule asks for the truth of a value (if, and, or, not); use & and |")


def graph_blocks(
    builder: Builder, q_length: str, k_length: str, q_block: int, k_block: int, offset: int | str
) -> Blocks:
    """Write positions as nodes; lengths (and `offset`, if a name) are 0-D int64 tensors."""

    def firsts(length: str, block: int, axis: int) -> GraphValue:
        count = builder.ceil_div(length, builder.constant(block, np.int64))
        return GraphValue(builder, builder.unsqueeze(builder.arange(count), [axis])) * block

    q_first = firsts(q_length, q_block, 1)
    if isinstance(offset, str):
        q_first = q_first + GraphValue(builder, offset)
    elif offset:
        q_first = q_first + offset
    k_first = firsts(k_length, k_block, 0)
    return Blocks(
        q_first,
        q_first + (q_block - 1),
        k_first,
        k_first + (k_block - 1),
        GraphValue(builder, q_length),
        GraphValue(builder, k_length),
    )
