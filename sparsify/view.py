"""How matchers see a model: onnx-graphsurgeon graphs, one per scope, and a few questions to ask.

Tensors and nodes here are onnx-graphsurgeon objects (`gs.Variable`, `gs.Constant`, `gs.Node`); that
library has no type information, so they are `Any` to the type checker.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import ModelProto, helper
from onnx_graphsurgeon.logger import G_LOGGER

from sparsify.builder import Builder
from sparsify.graft import names_in
from sparsify.model import inferred, opset_of
from sparsify.site import MAIN_SCOPE

Tensor = Any
Node = Any

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
"""The element types that the operator takes."""


@dataclass(frozen=True)
class Scope:
    """One graph to look for attentions in: the main graph, a body, or a local function.

    `name` is empty for the main graph, else a path such as `If_3/then_branch`. `outputs` names the
    tensors that leave the graph, `taken` all names in the file.
    """

    name: str
    graph: Any
    opset: int
    outputs: frozenset[str] = field(default=frozenset())
    taken: frozenset[str] = field(default=frozenset())

    def builder(self, hint: str) -> Builder:
        """A writer of nodes for this scope; `hint`, unique in the scope, opens their names."""
        return Builder(self.opset, f"sparsify/{hint}/", self.taken)

    def nodes(self) -> Iterator[Node]:
        """The nodes of this scope, in file order, bodies not entered."""
        yield from self.graph.nodes


def scopes(proto: ModelProto, folder: Path) -> list[Scope]:
    """The main graph, every body inside it, and every local function.

    `folder` is where external data lies.
    """
    G_LOGGER.severity = G_LOGGER.ERROR  # its warnings would go to standard output
    graph = gs.import_onnx(inferred(proto, folder))
    opset = opset_of(proto)
    taken = _names(proto)
    found = list(_with_bodies(MAIN_SCOPE, graph, opset, taken))
    for function in graph.functions:
        found.extend(
            _with_bodies(f"function {function.name}", function, function.opset or opset, taken)
        )
    return found


def _names(proto: ModelProto) -> frozenset[str]:
    found = names_in(proto.graph)
    for function in proto.functions:
        found |= {name for node in function.node for name in (*node.input, *node.output)}
    return frozenset(found)


def _with_bodies(name: str, graph: Any, opset: int, taken: frozenset[str]) -> Iterator[Scope]:
    yield Scope(name, graph, opset, frozenset(tensor.name for tensor in graph.outputs), taken)
    for node in graph.nodes:
        for key, value in node.attrs.items():
            if isinstance(value, gs.Graph):
                path = f"{name}/{label(node)}/{key}".lstrip("/")
                yield from _with_bodies(path, value, opset, taken)


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
