"""The graphs inside a model file: the main graph, bodies of If, Loop and Scan, local functions."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from sparsify.model import opset_of
from sparsify.site import MAIN_SCOPE
from sparsify.uses import AnyGraph


@dataclass(frozen=True)
class Place:
    """One graph of a file, under the name that its `Scope` has; no two have the same.

    A body can capture tensors of the place around it, `outer`, where node number `holder` holds it.
    """

    name: str
    graph: AnyGraph
    opset: int
    outer: "Place | None" = None
    holder: int = -1

    @property
    def chain(self) -> "tuple[Place, ...]":
        """The places around this one, outermost first, and this one."""
        return (self,) if self.outer is None else (*self.outer.chain, self)

    @property
    def layers(self) -> tuple[AnyGraph, ...]:
        """The graphs around this one, outermost first, and this one."""
        return tuple(place.graph for place in self.chain)

    @cached_property
    def order(self) -> dict[str, int]:
        """The number of the node that makes each tensor in this very graph."""
        return {name: i for i, node in enumerate(self.graph.node) for name in node.output if name}

    @property
    def in_function(self) -> bool:
        """Whether this is a local function, or a body in one."""
        return isinstance(self.layers[0], FunctionProto)

    def nodes(self) -> list[NodeProto]:
        """The nodes of this graph and of those around it, in an order in which they can run."""
        return [node for graph in self.layers for node in graph.node]

    def stored(self) -> list[TensorProto]:
        """The initializers that this graph can read."""
        graphs = [graph for graph in self.layers if isinstance(graph, GraphProto)]
        return [tensor for graph in graphs for tensor in graph.initializer]


def places(proto: ModelProto) -> list[Place]:
    """Every graph of a file: the main graph, each followed by its bodies, then the functions."""
    opset, seen = opset_of(proto), Counter[str]()
    found = list(_with_bodies(Place(MAIN_SCOPE, proto.graph, opset), seen))
    for function in proto.functions:
        own = opset_of(function) or opset
        found.extend(_with_bodies(Place(f"function {function.name}", function, own), seen))
    return found


def place_named(proto: ModelProto, name: str) -> Place:
    """The graph of a scope, by the scope's name."""
    return next(place for place in places(proto) if place.name == name)


def file_opset(proto: ModelProto) -> int:
    """The ai.onnx opset in which a file is read: the main graph's, into which calls are expanded.

    A main graph that consists of calls alone may import none; then it is that of the functions.
    """
    return opset_of(proto) or max(map(opset_of, proto.functions), default=0)


def interchangeable(one: int, other: int) -> bool:
    """Whether every operator that two ai.onnx opsets share is the same in both."""
    return one == other or _same_operators(min(one, other), max(one, other))


@cache
def _same_operators(old: int, new: int) -> bool:
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""]
    before = {s.name for s in schemas if s.since_version <= old}
    return not any(old < s.since_version <= new and s.name in before for s in schemas)


def home_of(tensor: str, near: Place, found: list[Place]) -> Place | None:
    """The place whose node makes a tensor; None where `near` cannot tell it from a namesake."""
    root = near.chain[0].name
    homes = [place for place in found if tensor in place.order and place.chain[0].name == root]
    return homes[0] if len(homes) == 1 else None


def prefix_of(scope: str) -> str:
    """What opens the names that are written into a scope."""
    return f"sparsify/{scope}/".replace("//", "/").replace(" ", "_")


def _with_bodies(place: Place, seen: Counter[str]) -> Iterator[Place]:
    seen[place.name] += 1
    if seen[place.name] > 1:  # equal names of nodes are bad, but legal
        place = replace(place, name=f"{place.name} #{seen[place.name]}")
    yield place
    for index, node in enumerate(place.graph.node):
        label = node.name or f"{node.op_type}({node.output[0] if node.output else ''})"
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH and not attribute.ref_attr_name:
                path = f"{place.name}/{label}/{attribute.name}".lstrip("/")
                body = Place(path, attribute.g, place.opset, place, index)
                yield from _with_bodies(body, seen)
