"""Changes a ModelProto in place of its replaced nodes and nowhere else."""

from collections.abc import Mapping, Sequence

from onnx import ModelProto, NodeProto

from sparsify.places import places
from sparsify.sweep import census, sweep
from sparsify.uses import AnyGraph

Replacements = Mapping[str, Sequence[NodeProto]]
"""New nodes, by the name of a tensor whose node they replace."""


def graft(model: ModelProto, replacements: Mapping[str, Replacements]) -> None:
    """Put nodes in the place of the nodes that make the named outputs, then drop what died.

    `replacements` are given by the name of the graph's place. Everything the replaced nodes alone
    kept alive goes with them, whichever graph it stands in: nodes, initializers and the value_info
    of vanished tensors. What was dead before stays as it was.
    """
    before = census(model)
    for place in reversed(places(model)):  # bodies before the graphs that copying would move
        if place.name in replacements:
            _exchange(place.graph, replacements[place.name])
    sweep(model, before)


def _exchange(graph: AnyGraph, replacements: Replacements) -> None:
    nodes: list[NodeProto] = []
    for node in graph.node:
        new = next((replacements[name] for name in node.output if name in replacements), None)
        nodes.extend([node] if new is None else new)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
