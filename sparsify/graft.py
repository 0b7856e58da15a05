"""Changes a ModelProto in place of its replaced nodes and nowhere else."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto


def graft(model: ModelProto, replacements: Mapping[str, Sequence[NodeProto]]) -> None:
    """Put nodes in the place of the node that makes each named output, then drop what died.

    Everything the replaced nodes alone kept alive goes with them: nodes, initializers and the
    value_info of vanished tensors. What was dead before stays as it was.
    """
    graph = model.graph
    before = _readers(graph, graph.node)
    nodes: list[NodeProto] = []
    for node in graph.node:
        new = next((replacements[name] for name in node.output if name in replacements), None)
        nodes.extend([node] if new is None else new)
    removed = _sweep(graph, nodes, before)
    _drop_initializers(graph, before)
    kept_info = [info for info in graph.value_info if info.name not in removed]
    if len(kept_info) != len(graph.value_info):
        del graph.value_info[:]
        graph.value_info.extend(kept_info)


def names_in(graph: GraphProto) -> set[str]:
    """Every tensor and node name used in a graph and its bodies."""
    names = {value.name for value in [*graph.input, *graph.output, *graph.value_info]}
    names |= {tensor.name for tensor in graph.initializer}
    names |= {tensor.values.name for tensor in graph.sparse_initializer}
    for node in graph.node:
        names |= {node.name, *node.input, *node.output}
        for body in bodies(node):
            names |= names_in(body)
    return names


def bodies(node: NodeProto) -> list[GraphProto]:
    """The graphs inside a node (If, Loop, Scan)."""
    found = []
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            found.append(attribute.g)
        elif attribute.type == AttributeProto.GRAPHS:
            found.extend(attribute.graphs)
    return found


def inputs_of(node: NodeProto) -> set[str]:
    """The tensors a node reads, those that its bodies capture included."""
    names = set(node.input)
    for body in bodies(node):
        names |= {name for inner in body.node for name in inputs_of(inner)}
        names |= {value.name for value in body.output}
    return names - {""}


def _readers(graph: GraphProto, nodes: Iterable[NodeProto]) -> Counter[str]:
    """How often each tensor is read; leaving the graph, or scaling another tensor, is a read."""
    readers = Counter(value.name for value in graph.output)
    for annotation in graph.quantization_annotation:
        readers.update(entry.value for entry in annotation.quant_parameter_tensor_names)
    for node in nodes:
        readers.update(inputs_of(node))
    return readers


def _sweep(graph: GraphProto, nodes: list[NodeProto], before: Counter[str]) -> set[str]:
    """Write `nodes` back without those that only replaced nodes had kept alive."""
    makers = {name: node for node in nodes for name in node.output}
    old = {name for node in graph.node for name in node.output}
    readers, dead = _readers(graph, nodes), set[int]()
    suspects = [name for name in before if not readers[name]]
    while suspects:
        node = makers.get(suspects.pop())
        if node is None or id(node) in dead or any(readers[name] for name in node.output):
            continue
        dead.add(id(node))
        for name in inputs_of(node):
            readers[name] -= 1
            if not readers[name]:
                suspects.append(name)
    kept = [node for node in nodes if id(node) not in dead]
    alive = {name for node in kept for name in node.output}
    copies = [NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)
    return old - alive


def _drop_initializers(graph: GraphProto, before: Counter[str]) -> None:
    readers = _readers(graph, graph.node)
    declared = {value.name for value in graph.input}
    for index in reversed(range(len(graph.initializer))):
        name = graph.initializer[index].name
        if before[name] and not readers[name] and name not in declared:
            del graph.initializer[index]
