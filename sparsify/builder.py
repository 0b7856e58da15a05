"""A small writer of standard-op nodes that knows how each ai.onnx opset spells them.

Function bodies, dynamic patterns and the rewriter all write nodes; none of them should have to
remember that `axes` became an input of ReduceSum at 13 and of ReduceMean at 18.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from sparsify.plugins import Operator

Attribute = int | float | str | bytes | Sequence[int] | Sequence[float] | TensorProto

_AXES_AS_INPUT = {
    "ReduceSum": 13,
    "ReduceMean": 18,
    "ReduceMax": 18,
    "ReduceMin": 18,
    "Unsqueeze": 13,
    "Squeeze": 13,
}


@dataclass(frozen=True)
class Call:
    """A node of an operator of ours, and the features that its body must support for it."""

    operator: Operator
    uses: frozenset[str]


class Builder:
    """Collects nodes under unique names, for one opset.

    Values are tensor names (`str`); every method returns the name of its result. `prefix` opens
    every name, and no name in `taken` is ever used.
    """

    def __init__(self, opset: int, prefix: str, taken: Container[str] = frozenset()) -> None:
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.calls: list[Call] = []
        self._prefix = prefix
        self._taken = taken
        self._count = 0
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def fresh(self, hint: str) -> str:
        """A tensor name that is not in use."""
        while True:
            name = f"{self._prefix}{hint}_{self._count}"
            self._count += 1
            if name not in self._taken:
                return name

    def node(
        self,
        op_type: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        outputs: Sequence[str] | int = 1,
        domain: str = "",
    ) -> list[str]:
        """Append one node; `outputs` is a count, or the names themselves."""
        if isinstance(outputs, int):
            names = [self.fresh(op_type.lower()) for _ in range(outputs)]
        else:
            names = list(outputs)
        node = helper.make_node(
            op_type, list(inputs), names, name=self.fresh(op_type), domain=domain
        )
        for key, value in (attributes or {}).items():
            node.attribute.append(helper.make_attribute(key, value))
        self.nodes.append(node)
        return names

    def op(
        self, op_type: str, *inputs: str, attributes: Mapping[str, Attribute] | None = None
    ) -> str:
        """Append a node with one output and return that output's name."""
        return self.node(op_type, inputs, attributes)[0]

    def call(
        self,
        operator: Operator,
        inputs: Mapping[str, str],
        attributes: Mapping[str, int | float],
        uses: frozenset[str] = frozenset(),
    ) -> list[str]:
        """Append a node of one of our operators, whose body has to support `uses`.

        Every input and attribute is written, "" for an input left out: onnx.reference wants both.
        """
        self.calls.append(Call(operator, uses))
        return self.node(
            operator.name,
            [inputs.get(name, "") for name in operator.inputs],
            {**operator.attributes, **attributes},
            outputs=len(operator.outputs),
            domain=operator.domain,
        )

    # Constants -----------------------------------------------------------------------------

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike) -> str:
        """A constant tensor; equal constants share one node."""
        array = np.asarray(value, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            tensor = numpy_helper.from_array(array)
            self._constants[key] = self.op("Constant", attributes={"value": tensor})
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """A 1-D int64 constant."""
        return self.constant(values, np.int64)

    def scalar(self, value: float) -> str:
        """A 0-D float32 constant."""
        return self.constant(value, np.float32)

    def attribute_reference(self, name: str, kind: onnx.AttributeProto.AttributeType) -> str:
        """Inside a function body: the value of the caller's attribute, a 0-D int64 or float32."""
        field = {AttributeProto.INT: "value_int", AttributeProto.FLOAT: "value_float"}[kind]
        output = self.fresh(name)
        node = helper.make_node("Constant", [], [output], name=self.fresh("Constant"))
        reference = AttributeProto(name=field, type=kind, ref_attr_name=name)
        node.attribute.append(reference)
        self.nodes.append(node)
        return output

    # Ops whose spelling depends on the opset ----------------------------------------------------

    def _with_axes(
        self, op_type: str, x: str, axes: Sequence[int], attributes: Mapping[str, Attribute]
    ) -> str:
        if self.opset >= _AXES_AS_INPUT[op_type]:
            return self.op(op_type, x, self.ints(*axes), attributes=attributes)
        return self.op(op_type, x, attributes={**attributes, "axes": list(axes)})

    def reduce(self, op_type: str, x: str, axes: Sequence[int], *, keepdims: bool) -> str:
        """ReduceSum, ReduceMean, ReduceMax or ReduceMin over `axes`."""
        return self._with_axes(op_type, x, axes, {"keepdims": int(keepdims)})

    def unsqueeze(self, x: str, axes: Sequence[int]) -> str:
        """Insert dimensions of size 1 at `axes` (non-negative, of the result)."""
        return self._with_axes("Unsqueeze", x, axes, {})

    def squeeze(self, x: str, axes: Sequence[int]) -> str:
        """Remove dimensions of size 1 at `axes`."""
        return self._with_axes("Squeeze", x, axes, {})

    # Everyday shorthands ------------------------------------------------------------------------

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """Permute dimensions; the identity writes no node."""
        if list(perm) == sorted(perm):
            return x
        return self.op("Transpose", x, attributes={"perm": list(perm)})

    def reshape(self, x: str, shape: str | Sequence[int]) -> str:
        """Reshape to a 1-D int64 tensor or to a literal shape (0 copies, -1 infers)."""
        target = shape if isinstance(shape, str) else self.ints(*shape)
        return self.op("Reshape", x, target)

    def cast(self, x: str, to: int) -> str:
        """Cast to a TensorProto data type."""
        return self.op("Cast", x, attributes={"to": to})

    def softmax(self, x: str) -> str:
        """Softmax over the last axis (the same in every opset, flattening or not)."""
        return self.op("Softmax", x, attributes={"axis": -1})

    def gather(self, x: str, indices: str, axis: int) -> str:
        """Gather along `axis`."""
        return self.op("Gather", x, indices, attributes={"axis": axis})

    def concat(self, parts: Sequence[str], axis: int) -> str:
        """Concatenate along `axis`; a single part is returned as it is."""
        if len(parts) == 1:
            return parts[0]
        return self.op("Concat", *parts, attributes={"axis": axis})

    def slice(self, x: str, start: str, end: str, axis: int) -> str:
        """x[start:end] along one axis; the bounds are 1-D int64 tensors of one element."""
        return self.op("Slice", x, start, end, self.ints(axis))

    def dims(self, x: str, *axes: int) -> str:
        """The sizes of `axes` (non-negative) as a 1-D int64 tensor."""
        return self.gather(self.op("Shape", x), self.ints(*axes), 0)

    def dim(self, x: str, axis: int) -> str:
        """The size of one axis as a 0-D int64 tensor."""
        return self.gather(self.op("Shape", x), self.constant(axis, np.int64), 0)

    def arange(self, count: str) -> str:
        """0 .. count-1 as int64, from a 0-D int64 tensor."""
        zero, one = self.constant(0, np.int64), self.constant(1, np.int64)
        return self.op("Range", zero, count, one)

    def ceil_div(self, count: str, size: str) -> str:
        """ceil(count / size) on int64 tensors, for positive sizes."""
        one = self.constant(1, np.int64)
        return self.op("Div", self.op("Sub", self.op("Add", count, size), one), size)
