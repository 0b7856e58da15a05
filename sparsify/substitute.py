"""What a proof runs where ONNX Runtime lacks a kernel: halves as float, definitions written out.

Both mean what the original means; they only stand in where the original does not run at all.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto, helper

from sparsify.model import opset_of
from sparsify.uses import bodies

Arrays = Mapping[str, npt.NDArray[Any]]

_DOMAIN = "sparsify.definition"
_WIDE = TensorProto.FLOAT

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""The element types that many kernels of ONNX Runtime's CPU provider lack."""


def in_float(model: ModelProto) -> ModelProto:
    """The same model with every half made a float."""
    wide = ModelProto()
    wide.CopyFrom(model)
    for value in [*wide.graph.input, *wide.graph.output, *wide.graph.value_info]:
        if value.type.tensor_type.elem_type in HALVES:
            value.type.tensor_type.elem_type = _WIDE
    for tensor in wide.graph.initializer:
        _widen(tensor)
    for node in _all_nodes(wide):
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype") and attribute.i in HALVES:
                attribute.i = _WIDE
            if attribute.type == AttributeProto.TENSOR:
                _widen(attribute.t)
    return wide


def written_out(model: ModelProto, feeds: Arrays) -> ModelProto | None:
    """The model with Attention as the function that defines it; None where that is not to be had.

    The definition depends on ranks, which are those of `feeds`.
    """
    result = ModelProto()
    result.CopyFrom(model)
    for index, node in enumerate(result.graph.node):
        if node.op_type == "Attention" and node.domain in ("", "ai.onnx"):
            body = _definition(node, opset_of(model), feeds)
            if body is None:
                return None
            body.name, body.domain = f"Attention_{index}", _DOMAIN
            node.op_type, node.domain = body.name, body.domain
            _without_gaps(node, body)
            result.functions.append(body)
    if len(result.functions) == len(model.functions):
        return None
    result.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return result


def fitting(feeds: Arrays, model: ModelProto) -> dict[str, npt.NDArray[Any]]:
    """The feeds, as float where the model takes them so."""
    floats = {v.name for v in model.graph.input if v.type.tensor_type.elem_type == _WIDE}
    return {n: x.astype(np.float32) if n in floats else x for n, x in feeds.items()}


def _definition(node: NodeProto, opset: int, feeds: Arrays) -> FunctionProto | None:
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:  # this onnx is older than the operator
        return None
    types = [_type_of(feeds.get(name)) for name in node.input]
    body = FunctionProto()
    body.ParseFromString(schema.get_context_dependent_function(node.SerializeToString(), types))
    return body


def _without_gaps(node: NodeProto, body: FunctionProto) -> None:
    """Leave out what the node leaves out: ONNX Runtime's local functions have nothing optional."""
    for outer, inner in ((node.input, body.input), (node.output, body.output)):
        pairs = [(o, i) for o, i in zip(outer, inner, strict=False) if o]
        outer[:], inner[:] = [o for o, _ in pairs], [i for _, i in pairs]


def _type_of(array: npt.NDArray[Any] | None) -> bytes:
    if array is None:
        return b""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return bytes(helper.make_tensor_type_proto(kind, [None] * array.ndim).SerializeToString())


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type in HALVES:
        values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))


def _all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    todo = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while todo:
        node = todo.pop()
        todo.extend(inner for body in bodies(node) for inner in body.node)
        yield node
