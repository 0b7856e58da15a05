"""The graphs inside a model file: the main graph, bodies of If, Loop and Scan, local functions."""

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from sparsify.model import opset_of
from sparsify.site import MAIN_SCOPE


@dataclass(frozen=True)
class Place:
    """One graph of a file, under the name that its `Scope` has.

    `enclosing` are the graphs whose tensors it may capture, outermost first.
    """

    name: str
    graph: GraphProto | FunctionProto
    opset: int
    enclosing: tuple[GraphProto | FunctionProto, ...] = ()

    @property
    def layers(self) -> tuple[GraphProto | FunctionProto, ...]:
        """The enclosing graphs and this one."""
        return (*self.enclosing, self.graph)

    def nodes(self) -> list[NodeProto]:
        """The nodes of this graph and of those around it, in an order in which they can run."""
        return [node for graph in self.layers for node in graph.node]

    def stored(self) -> list[TensorProto]:
        """The initializers that this graph can read."""
        graphs = [graph for graph in self.layers if isinstance(graph, GraphProto)]
        return [tensor for graph in graphs for tensor in graph.initializer]


def places(proto: ModelProto) -> list[Place]:
    """Every graph of a file, in the order in which `sparsify.view.scopes` lists them."""
    opset = opset_of(proto)
    found = list(_with_bodies(MAIN_SCOPE, proto.graph, opset, ()))
    for function in proto.functions:
        own = opset_of(function) or opset
        found.extend(_with_bodies(f"function {function.name}", function, own, ()))
    return found


def place_named(proto: ModelProto, name: str) -> Place:
    """The graph of a scope, by the scope's name."""
    return next(place for place in places(proto) if place.name == name)


def _with_bodies(
    name: str,
    graph: GraphProto | FunctionProto,
    opset: int,
    enclosing: tuple[GraphProto | FunctionProto, ...],
) -> Iterator[Place]:
    yield Place(name, graph, opset, enclosing)
    for node in graph.node:
        label = node.name or f"{node.op_type}({node.output[0] if node.output else ''})"
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                path = f"{name}/{label}/{attribute.name}".lstrip("/")
                yield from _with_bodies(path, attribute.g, opset, (*enclosing, graph))
