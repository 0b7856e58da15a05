"""Attributes inside a local function that its calls give: filled in where all calls agree."""

from collections.abc import Mapping, Sequence

from onnx import AttributeProto, FunctionProto, NodeProto

Attributes = Mapping[str, AttributeProto]

OPEN = "?"
"""Ends the operator of a node that no matcher may read: its attributes differ between calls."""


def agreed(
    function: FunctionProto, calls: Sequence[Attributes]
) -> dict[str, AttributeProto | None]:
    """The attributes that are the same in every call; None for those that no call gives."""
    defaults = {attribute.name: attribute for attribute in function.attribute_proto}
    result: dict[str, AttributeProto | None] = {}
    for name in (*function.attribute, *defaults):
        given = [call.get(name, defaults.get(name)) for call in calls]
        first = given[0] if given else defaults.get(name)
        if (given or first is not None) and all(value == first for value in given):
            result[name] = first
    return result


def closed(node: NodeProto, attributes: Mapping[str, AttributeProto | None]) -> NodeProto:
    """A node with its references replaced; one that stays open gets another operator's name."""
    result = NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for attribute in node.attribute:
        name = attribute.ref_attr_name
        if not name:
            _descend(attribute, attributes, result)
        elif name not in attributes or attribute.type == AttributeProto.GRAPH:
            result.op_type = node.op_type + OPEN
        elif (value := attributes[name]) is not None:
            added = result.attribute.add()
            added.CopyFrom(value)
            added.name = attribute.name
    return result


def _descend(
    source: AttributeProto, attributes: Mapping[str, AttributeProto | None], node: NodeProto
) -> None:
    """Copy an attribute to a node, the nodes of its body closed as well."""
    added = node.attribute.add()
    added.CopyFrom(source)
    if source.type == AttributeProto.GRAPH:
        del added.g.node[:]
        added.g.node.extend(closed(inner, attributes) for inner in source.g.node)
