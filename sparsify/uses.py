"""Who reads and who makes which tensors, bodies of If, Loop and Scan included."""

from collections.abc import Iterator

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

AnyGraph = GraphProto | FunctionProto


def bodies(node: NodeProto) -> list[GraphProto]:
    """The graphs inside a node (If, Loop, Scan)."""
    found = []
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            found.append(attribute.g)
        elif attribute.type == AttributeProto.GRAPHS:
            found.extend(attribute.graphs)
    return found


def nested(graph: AnyGraph) -> Iterator[AnyGraph]:
    """A graph and every body inside it."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from nested(body)


def graphs_of(proto: ModelProto) -> Iterator[AnyGraph]:
    """Every graph of a file: the main graph, bodies, local functions."""
    for root in (proto.graph, *proto.functions):
        yield from nested(root)


def inputs_of(node: NodeProto) -> set[str]:
    """The tensors a node reads, those that its bodies capture included."""
    names = set(node.input)
    for body in bodies(node):
        names |= captured(body)
    return names - {""}


def captured(body: GraphProto) -> set[str]:
    """The tensors from outside that a body reads, or hands back as they are."""
    names = {name for node in body.node for name in inputs_of(node)}
    return (names | outputs_of(body)) - made_in(body)


def made_in(graph: AnyGraph) -> set[str]:
    """The tensors that belong to a graph: its inputs, its initializers, what its nodes make."""
    names = {name for node in graph.node for name in node.output}
    if isinstance(graph, FunctionProto):
        return names | set(graph.input)
    names |= {value.name for value in graph.input}
    names |= {tensor.name for tensor in graph.initializer}
    return names | {tensor.values.name for tensor in graph.sparse_initializer}


def outputs_of(graph: AnyGraph) -> set[str]:
    """The tensors that leave a graph."""
    if isinstance(graph, FunctionProto):
        return set(graph.output)
    return {value.name for value in graph.output}


def names_in(proto: ModelProto) -> set[str]:
    """Every tensor and node name in a file."""
    names = set[str]()
    for graph in graphs_of(proto):
        names |= made_in(graph) | outputs_of(graph)
        names |= {value.name for value in graph.value_info}
        for node in graph.node:
            names |= {node.name, *node.input}
    return names
