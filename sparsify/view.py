"""How matchers see a model: onnx-graphsurgeon graphs, one per scope, and a few questions to ask.

Tensors and nodes here are onnx-graphsurgeon objects (`gs.Variable`, `gs.Constant`, `gs.Node`); that
library has no type information, so they are `Any` to the type checker.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import ModelProto, helper
from onnx_graphsurgeon.logger import G_LOGGER

from sparsify.builder import Builder
from sparsify.infer import inferred, typed_functions
from sparsify.places import Place, places, prefix_of
from sparsify.uses import AnyGraph, made_in, names_in, nested, outputs_of

Tensor = Any
Node = Any

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
"""The element types that the operator takes."""


@dataclass(frozen=True)
class Scope:
    """One graph to look for attentions in: the main graph, a body, or a local function.

    `name` is empty for the main graph, else a path such as `If_3/then_branch`. `outputs` names the
    tensors that leave the graph (or one around it), `taken` all names in the file.
    """

    name: str
    graph: Any
    opset: int
    outputs: frozenset[str] = field(default=frozenset())
    taken: frozenset[str] = field(default=frozenset())

    def builder(self, hint: str) -> Builder:
        """A writer of nodes for this scope; `hint`, unique in the scope, opens their names."""
        return Builder(self.opset, f"{prefix_of(self.name)}{hint}/", self.taken)

    def nodes(self) -> Iterator[Node]:
        """The nodes of this scope, in file order, bodies not entered."""
        yield from self.graph.nodes


def scopes(proto: ModelProto, folder: Path) -> list[Scope]:
    """The main graph, every body inside it, and every local function, as `places` lists them.

    `folder` is where external data lies.
    """
    G_LOGGER.severity = G_LOGGER.ERROR  # its warnings would go to standard output
    model = inferred(proto, folder)
    models = [model, *typed_functions(model)]
    for root in models:
        del root.functions[:]  # each is a model of its own
    roots = map(gs.import_onnx, models)
    graphs = [graph for root in roots for graph in _with_bodies(root)]
    taken = frozenset(names_in(proto))
    returned = {place.name: _returned(place.graph) for place in places(proto) if not place.outer}
    return [
        Scope(place.name, graph, place.opset, _leaving(place, returned), taken)
        for place, graph in zip(places(proto), graphs, strict=True)
    ]


def _returned(root: AnyGraph) -> set[str]:
    """The tensors from outside that bodies hand back as they are."""
    return {name for graph in nested(root) for name in outputs_of(graph) - made_in(graph)}


def _leaving(place: Place, returned: Mapping[str, set[str]]) -> frozenset[str]:
    """The tensors seen in a place that leave a graph: it, one around it, or a body inside."""
    around = [name for graph in place.layers[:-1] for name in outputs_of(graph)]
    outer = set(around) - made_in(place.graph)
    return frozenset(outputs_of(place.graph) | outer | returned[place.chain[0].name])


def _with_bodies(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.nodes:
        for value in node.attrs.values():
            if isinstance(value, gs.Graph):
                yield from _with_bodies(value)


def label(node: Node) -> str:
    """A node's name, or its operator and first output where it has none."""
    return node.name or f"{node.op}({node.outputs[0].name if node.outputs else ''})"


def producer(tensor: Tensor, op: str | None = None) -> Node | None:
    """The node that makes a tensor, if it has one (and if its operator is `op`)."""
    if not tensor.inputs:
        return None
    node = tensor.inputs[0]
    return node if op is None or node.op == op else None


def consumers(tensor: Tensor) -> list[Node]:
    """The nodes that read a tensor, bodies of If, Loop and Scan included."""
    return list(tensor.outputs)


def is_weight(tensor: Tensor) -> bool:
    """Whether a tensor is stored in the file: an initializer or a Constant, cast or transposed."""
    node = producer(tensor)
    if node is None:
        return isinstance(tensor, gs.Constant)
    if node.op in ("Identity", "Cast", "DequantizeLinear", "Transpose"):
        return is_weight(node.inputs[0])
    return bool(node.op == "Constant")


def element_type(tensor: Tensor) -> int | None:
    """The ONNX data type of a tensor, None where inference could not tell."""
    dtype = tensor.dtype
    if dtype is None:
        return None
    if isinstance(dtype, int):
        return dtype
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
