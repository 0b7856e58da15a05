"""Types and shapes of every tensor of a model as far as ONNX infers them, in functions as well.

Inference says nothing about the inside of a local function. Each is made a graph of its own here,
whose inputs have the types that its calls agree on; a size that differs between calls becomes a
symbol of all its values, so that sizes which are equal in every call stay equal.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, helper

from sparsify.model import skeleton
from sparsify.open_attributes import Attributes, agreed, closed
from sparsify.uses import bodies, graphs_of, nested

log = logging.getLogger(__name__)

Key = tuple[str, str, str]
"""What a call names: domain, name and overload of a function."""

_UNKNOWN = "unk__"
"""How inference names a size that it does not know."""


@dataclass(frozen=True)
class Call:
    """One use of a function: the types of its inputs, None where unknown, and its attributes."""

    types: tuple[TypeProto | None, ...]
    attributes: Attributes


def inferred(proto: ModelProto, folder: Path) -> ModelProto:
    """A skeleton with the shapes that ONNX can infer; what it cannot stays open."""
    bare = skeleton(proto, folder)
    known = {opset.domain for opset in bare.opset_import}
    used = {node.domain for graph in graphs_of(bare) for node in graph.node}
    # ONNX Runtime does without these imports, inference does not
    missing = sorted(used - known - {"", "ai.onnx"})
    bare.opset_import.extend(helper.make_opsetid(domain, 1) for domain in missing)
    return _inferred(bare)


def typed_functions(model: ModelProto) -> list[ModelProto]:
    """The local functions of an inferred model, each as the main graph of a model, inferred."""
    functions = {_key(function): function for function in model.functions}
    calls: dict[Key, list[Call]] = defaultdict(list)
    _collect(model.graph, {}, functions, calls)
    done: dict[Key, ModelProto] = {}
    for key in _callers_first(functions):
        done[key] = _inferred(_opened(functions[key], model, calls[key]))
        _collect(done[key].graph, {}, functions, calls)
    return [done[_key(function)] for function in model.functions]


def _key(item: FunctionProto | NodeProto) -> Key:
    name = item.name if isinstance(item, FunctionProto) else item.op_type
    return item.domain, name, item.overload


def _inferred(model: ModelProto) -> ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        log.warning("shapes stay unknown: %s", str(error).strip().splitlines()[0])
        return model


def _callers_first(functions: Mapping[Key, FunctionProto]) -> list[Key]:
    """The functions in an order in which none comes before one that calls it."""
    order: list[Key] = []

    def visit(key: Key, above: frozenset[Key]) -> None:
        for graph in nested(functions[key]):
            for callee in map(_key, graph.node):
                if callee in functions and callee not in order and callee not in above:
                    visit(callee, above | {callee})
        order.append(key)

    for key in functions:
        if key not in order:
            visit(key, frozenset({key}))
    return order[::-1]


def _called_from(
    function: FunctionProto, functions: Mapping[Key, FunctionProto]
) -> list[FunctionProto]:
    """The functions that the calls inside a function lead to."""
    found: dict[Key, FunctionProto] = {}
    todo = [function]
    while todo:
        for graph in nested(todo.pop()):
            for key in map(_key, graph.node):
                if key in functions and key not in found:
                    found[key] = functions[key]
                    todo.append(functions[key])
    return list(found.values())


def _collect(
    graph: GraphProto,
    outer: Mapping[str, TypeProto],
    functions: Mapping[Key, FunctionProto],
    calls: dict[Key, list[Call]],
) -> None:
    """Add every call that stands in a graph or its bodies."""
    types = {**outer, **_types_in(graph)}
    for node in graph.node:
        if _key(node) in functions:
            known = tuple(types.get(name) for name in node.input)
            attributes = {attribute.name: attribute for attribute in node.attribute}
            calls[_key(node)].append(Call(known, attributes))
        for body in bodies(node):
            _collect(body, types, functions, calls)


def _types_in(graph: GraphProto) -> dict[str, TypeProto]:
    types = {
        tensor.name: helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        for tensor in graph.initializer
    }
    values = (*graph.value_info, *graph.output, *graph.input)
    return types | {value.name: value.type for value in values if value.type.ByteSize()}


def _opened(function: FunctionProto, model: ModelProto, calls: Sequence[Call]) -> ModelProto:
    """A function as a graph: inputs of the types, nodes with the attributes of all its calls."""
    attributes = agreed(function, [call.attributes for call in calls])
    graph = GraphProto(name=function.name)
    graph.node.extend(closed(node, attributes) for node in function.node)
    graph.value_info.extend(function.value_info)
    for index, name in enumerate(function.input):
        value = graph.input.add(name=name)
        types = [call.types[index] if index < len(call.types) else None for call in calls]
        merged = _merged(types)
        if merged is not None:
            value.type.CopyFrom(merged)
    for name in function.output:
        graph.output.add(name=name)
    needed = _called_from(function, {_key(other): other for other in model.functions})
    result = ModelProto(ir_version=model.ir_version, graph=graph, functions=needed)
    opsets = (*model.opset_import, *function.opset_import)
    imports = {opset.domain: opset.version for opset in opsets}
    result.opset_import.extend(helper.make_opsetid(*pair) for pair in imports.items())
    return result


def _merged(types: Sequence[TypeProto | None]) -> TypeProto | None:
    """What all types have in common, None where their elements differ or one is not known."""
    known = [t.tensor_type for t in types if t is not None and t.HasField("tensor_type")]
    if not known or len(known) < len(types) or len({t.elem_type for t in known}) > 1:
        return None
    result = TypeProto()
    result.tensor_type.elem_type = known[0].elem_type
    if all(t.HasField("shape") for t in known) and len({len(t.shape.dim) for t in known}) == 1:
        result.tensor_type.shape.SetInParent()
        for dims in zip(*(t.shape.dim for t in known), strict=True):
            _merge_sizes([d.dim_value or d.dim_param for d in dims], result)
    return result


def _merge_sizes(sizes: list[int | str], result: TypeProto) -> None:
    dim = result.tensor_type.shape.dim.add()
    if any(not size or str(size).startswith(_UNKNOWN) for size in sizes):
        return
    if len(set(sizes)) > 1:
        dim.dim_param = "|".join(map(str, sizes))
    elif isinstance(sizes[0], int):
        dim.dim_value = sizes[0]
    else:
        dim.dim_param = sizes[0]
