"""Reading a model file without its weights, and saying plainly what a bad file is."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf.message import DecodeError, Message
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
)

from sparsify.errors import SparsifyError

SMALL = 1024
"""Tensors of at most this many elements keep their values in a skeleton (shapes, scales)."""

_LFS = b"version https://git-lfs"
_SIGNATURES = {
    b"PK": "a zip archive (perhaps a PyTorch checkpoint)",
    b"<!": "an HTML page",
    b"<h": "an HTML page",
}


@dataclass(frozen=True)
class Model:
    """A model file: its path and its proto, with external weights left on disk."""

    path: Path
    proto: ModelProto

    @property
    def opset(self) -> int:
        """The version of ai.onnx that the main graph uses."""
        return opset_of(self.proto)

    @property
    def folder(self) -> Path:
        """Where external data lies."""
        return self.path.parent

    def graph_hash(self) -> str:
        """SHA-256 of the graph without its weights: what a plan is valid for."""
        bare = skeleton(self.proto, self.folder)
        return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def load(path: str | Path) -> Model:
    """Read an ONNX file; external weights are never read.

    Raises:
        SparsifyError: the file is missing, is not an ONNX model, or holds no graph.
    """
    file = Path(path)
    if file.is_dir():
        raise SparsifyError(f"{file}: is a directory; name the .onnx file inside it")
    if not file.is_file():
        raise SparsifyError(f"{file}: no such file; check the path")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SparsifyError(f"{file}: cannot be read ({error.strerror}); check it") from error
    return Model(file, _parse(file, data))


def _parse(file: Path, data: bytes) -> ModelProto:
    if not data:
        raise SparsifyError(f"{file}: is empty (0 bytes); export or download it again")
    if data.startswith(_LFS):
        raise SparsifyError(f"{file}: is a Git LFS pointer, not the model; run `git lfs pull`")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        kind = _SIGNATURES.get(data[:2], "not an ONNX model, or cut short")
        raise SparsifyError(f"{file}: is {kind}; give an .onnx file") from error
    if not proto.graph.node or not proto.opset_import:
        raise SparsifyError(f"{file}: holds no ONNX graph; give a model exported to .onnx")
    _check_names(file, proto.graph, frozenset({""}))
    return proto


def _check_names(file: Path, graph: GraphProto, outer: frozenset[str]) -> None:
    """Refuse a graph in which something reads a tensor that nothing makes."""
    made = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    made |= {tensor.values.name for tensor in graph.sparse_initializer}
    made |= {name for node in graph.node for name in node.output}
    known = outer | made
    for node in graph.node:
        for name in node.input:
            if name not in known:
                where = node.name or node.op_type
                raise SparsifyError(
                    f"{file}: node {where} reads {name!r}, which nothing makes; export it again"
                )
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _check_names(file, body, known)
    for value in graph.output:
        if value.name not in known:
            raise SparsifyError(f"{file}: nothing makes the output {value.name!r}; export it again")


def opset_of(proto: ModelProto | FunctionProto) -> int:
    """The imported version of ai.onnx, 0 when a model or function imports none."""
    return max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=0)


def skeleton(proto: ModelProto, folder: Path) -> ModelProto:
    """A copy without the payload of tensors over `SMALL` elements: cheap to walk.

    Smaller ones that lie in files of `folder` are read: shapes and scales may be among them.
    """
    bare = ModelProto()
    overridable = overridable_names(proto)
    for field, value in proto.ListFields():
        if field.name == "graph":
            _copy_graph(proto.graph, bare.graph, folder, overridable)
        elif field.name == "functions":
            for function in proto.functions:
                _copy_function(function, bare.functions.add(), folder)
        elif field.name in ("opset_import", "metadata_props"):
            getattr(bare, field.name).extend(value)
        elif field.name in ("ir_version", "producer_name", "producer_version", "domain"):
            setattr(bare, field.name, value)
    return bare


def overridable_names(proto: ModelProto) -> frozenset[str]:
    """Initializers that are defaults of graph inputs (IR 4 and newer): callers may change them."""
    if proto.ir_version < 4:
        return frozenset()
    stored = {tensor.name for tensor in proto.graph.initializer}
    return frozenset(value.name for value in proto.graph.input if value.name in stored)


def _copy_graph(
    source: GraphProto, target: GraphProto, folder: Path, without: frozenset[str]
) -> None:
    target.name = source.name
    for repeated in ("input", "output", "value_info", "sparse_initializer"):
        getattr(target, repeated).extend(getattr(source, repeated))
    for tensor in source.initializer:
        if tensor.name in without:
            continue
        _copy_tensor(inlined(tensor, folder), target.initializer.add())
    for node in source.node:
        _copy_node(node, target.node.add(), folder)


def _copy_function(source: FunctionProto, target: FunctionProto, folder: Path) -> None:
    for field, value in source.ListFields():
        if field.name != "node":
            _copy_field(field.name, value, target)
    for node in source.node:
        _copy_node(node, target.node.add(), folder)


def _copy_node(source: NodeProto, target: NodeProto, folder: Path) -> None:
    if not any(a.HasField("t") or a.HasField("g") for a in source.attribute):
        target.CopyFrom(source)
        return
    for field, value in source.ListFields():
        if field.name != "attribute":
            _copy_field(field.name, value, target)
    for attribute in source.attribute:
        _copy_attribute(attribute, target.attribute.add(), folder)


def _copy_attribute(source: AttributeProto, target: AttributeProto, folder: Path) -> None:
    if not source.HasField("t") and not source.HasField("g"):
        target.CopyFrom(source)
        return
    target.name, target.type, target.doc_string = source.name, source.type, source.doc_string
    if source.HasField("t"):
        _copy_tensor(inlined(source.t, folder), target.t)
    if source.HasField("g"):
        _copy_graph(source.g, target.g, folder, frozenset())


def _copy_field(name: str, value: Any, target: Message) -> None:
    if isinstance(value, str | int | float | bytes):
        setattr(target, name, value)
    else:
        getattr(target, name).extend(value)


def _copy_tensor(source: TensorProto, target: TensorProto) -> None:
    if _count(source) <= SMALL and source.data_location != TensorProto.EXTERNAL:
        target.CopyFrom(source)
        return
    target.name, target.data_type = source.name, source.data_type
    target.dims.extend(source.dims)
    target.data_location = TensorProto.EXTERNAL
    target.external_data.add(key="location", value="weights-left-on-disk")


def inlined(tensor: TensorProto, folder: Path) -> TensorProto:
    """A small tensor with its value read from the data file; any other as it is."""
    if tensor.data_location != TensorProto.EXTERNAL or _count(tensor) > SMALL:
        return tensor
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = PurePosixPath(entries.get("location", ""))
    file = folder / location
    if location.is_absolute() or ".." in location.parts or not file.is_file():
        return tensor
    result = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    with file.open("rb") as data:
        data.seek(int(entries.get("offset", 0)))
        result.raw_data = data.read(byte_size(tensor))
    return result if len(result.raw_data) == byte_size(tensor) else tensor


def _count(tensor: TensorProto) -> int:
    return math.prod(tensor.dims)


def byte_size(tensor: TensorProto) -> int:
    """The bytes that a tensor's raw data takes."""
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return _count(tensor) * int(dtype.itemsize)
