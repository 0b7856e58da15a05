"""What masks are read from: the nodes, stored tensors and inputs that one graph can see."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import FunctionProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from sparsify.model import SMALL, Model, byte_size, overridable_names, skeleton
from sparsify.places import Place, place_named
from sparsify.uses import inputs_of

Array = npt.NDArray[Any]

_LARGEST = 64 << 20
"""Bytes of the largest stored tensor that is read: a mask of 4096 x 4096 numbers."""

_DEPTH = 12


@dataclass(frozen=True)
class Source:
    """One graph of a model with everything that it can read, by name.

    `nodes` carry no large tensors, `originals` do; the values of `stored` are read when wanted.
    """

    nodes: tuple[NodeProto, ...]
    originals: tuple[NodeProto, ...]
    stored: dict[str, TensorProto]
    inputs: dict[str, ValueInfoProto]
    functions: tuple[FunctionProto, ...]
    imports: dict[str, int]
    folder: Path
    makers: dict[str, int] = field(default_factory=dict)
    _reads: dict[str, frozenset[str]] = field(default_factory=dict)

    def maker(self, name: str) -> NodeProto | None:
        """The node that makes a tensor."""
        index = self.makers.get(name)
        return None if index is None else self.nodes[index]

    def upstream(self, names: Iterable[str], stops: Iterable[str] = ()) -> list[NodeProto]:
        """The nodes that lead to some tensors, in an order in which they can run."""
        ends, found, todo = set(stops), set[int](), list(names)
        while todo:
            name = todo.pop()
            index = self.makers.get(name)
            if name not in ends and index is not None and index not in found:
                found.add(index)
                todo.extend(self.reads(self.nodes[index]))
        return [self.nodes[index] for index in sorted(found)]

    def reads(self, node: NodeProto) -> frozenset[str]:
        """The tensors that a node reads, itself or in its bodies."""
        made = node.output[0]
        if made not in self._reads:
            self._reads[made] = frozenset(name for name in inputs_of(node) if name)
        return self._reads[made]

    def read(self, nodes: Iterable[NodeProto]) -> set[str]:
        """The tensors that some nodes read."""
        return {name for node in nodes for name in self.reads(node)}

    def array(self, tensor: TensorProto) -> Array | None:
        """The values of a stored tensor; None where they are out of reach or too large."""
        if byte_size(tensor) > _LARGEST:
            return None
        if tensor.data_location != TensorProto.EXTERNAL:
            return numpy_helper.to_array(tensor)
        data = _external(tensor, self.folder)
        if data is None:
            return None
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.frombuffer(data, dtype).reshape(tuple(tensor.dims))

    def number(self, name: str, depth: int = _DEPTH) -> float | None:
        """The one number that a stored or filled tensor holds everywhere; else None."""
        tensor = self.stored.get(name)
        node = self.maker(name)
        if tensor is None and node is not None and node.op_type == "Constant":
            tensor = constant_of(node)
        if tensor is not None:
            return self._uniform(tensor)
        if node is None or depth == 0:
            return None
        if node.op_type == "ConstantOfShape":
            return self._uniform(node.attribute[0].t) if node.attribute else 0.0
        if node.op_type in ("Identity", "Unsqueeze", "Squeeze", "Reshape", "Expand"):
            return self.number(node.input[0], depth - 1)
        if node.op_type == "Cast":
            value = self.number(node.input[0], depth - 1)
            return None if value is None else cast(value, node.attribute[0].i)
        if node.op_type == "Neg":
            value = self.number(node.input[0], depth - 1)
            return None if value is None else -value
        return None

    def _uniform(self, tensor: TensorProto) -> float | None:
        if not 0 < math.prod(tensor.dims) <= SMALL or tensor.data_type == TensorProto.STRING:
            return None
        values = self.array(tensor)
        if values is None:
            return None
        numbers = np.asarray(values, dtype=np.float64).reshape(-1)
        return float(numbers[0]) if (numbers == numbers[0]).all() else None


def source_of(model: Model, place: Place) -> Source | None:
    """What a place can read; None for local functions, whose inputs have no shapes of their own."""
    if isinstance(place.layers[0], FunctionProto):
        return None
    bare = skeleton(model.proto, model.folder)
    nodes = tuple(place_named(bare, place.name).nodes())
    open_to_callers = overridable_names(model.proto)
    stored = {t.name: t for t in place.stored() if t.name not in open_to_callers}
    graphs = [graph for graph in place.layers if not isinstance(graph, FunctionProto)]
    inputs = {v.name: v for graph in graphs for v in graph.input if v.name not in stored}
    imports = {opset.domain: opset.version for opset in bare.opset_import}
    imports = {"" if name == "ai.onnx" else name: version for name, version in imports.items()}
    for node in nodes:  # ONNX Runtime does without these imports, inference does not
        imports.setdefault("" if node.domain == "ai.onnx" else node.domain, 1)
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    functions, originals = tuple(bare.functions), tuple(place.nodes())
    return Source(nodes, originals, stored, inputs, functions, imports, model.folder, makers)


def constant_of(node: NodeProto) -> TensorProto | None:
    """The tensor in a Constant node, whichever attribute holds it."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            tensor: TensorProto = attribute.t
            return tensor
        if attribute.name in ("value_float", "value_int", "value_floats", "value_ints"):
            value = helper.get_attribute_value(attribute)
            kind = np.int64 if "int" in attribute.name else np.float32
            return numpy_helper.from_array(np.asarray(value, dtype=kind))
    return None


def cast(value: float, element_type: int) -> float:
    """A number as it is in another element type: the lowest float is -inf in float16."""
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    with np.errstate(all="ignore"):
        return float(np.asarray(value).astype(np.float32).astype(dtype))


def _external(tensor: TensorProto, folder: Path) -> bytes | None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = PurePosixPath(entries.get("location", ""))
    file = folder / location
    if location.is_absolute() or ".." in location.parts or not file.is_file():
        return None
    with file.open("rb") as data:
        data.seek(int(entries.get("offset", 0)))
        found = data.read(byte_size(tensor))
    return found if len(found) == byte_size(tensor) else None
