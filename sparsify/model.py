"""Reading a model file without its weights, and saying plainly what a bad file is."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

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

    def graph_hash(self) -> str:
        """SHA-256 of the graph without its weights: what a plan is valid for."""
        return hashlib.sha256(
            skeleton(self.proto).SerializeToString(deterministic=True)
        ).hexdigest()


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
    return proto


def opset_of(proto: ModelProto) -> int:
    """The imported version of ai.onnx, 0 when the model imports none."""
    return max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=0)


def skeleton(proto: ModelProto) -> ModelProto:
    """A copy without the payload of tensors over `SMALL` elements: cheap to walk."""
    bare = ModelProto()
    for field, value in proto.ListFields():
        if field.name == "graph":
            _copy_graph(proto.graph, bare.graph)
        elif field.name in ("opset_import", "functions", "metadata_props"):
            getattr(bare, field.name).extend(value)
        elif field.name in ("ir_version", "producer_name", "producer_version", "domain"):
            setattr(bare, field.name, value)
    return bare


def _copy_graph(source: GraphProto, target: GraphProto) -> None:
    target.name = source.name
    for repeated in ("input", "output", "value_info", "sparse_initializer"):
        getattr(target, repeated).extend(getattr(source, repeated))
    for tensor in source.initializer:
        _copy_tensor(tensor, target.initializer.add())
    for node in source.node:
        _copy_node(node, target.node.add())


def _copy_node(source: NodeProto, target: NodeProto) -> None:
    if (
        source.op_type != "Constant"
        or not source.attribute
        or not source.attribute[0].HasField("t")
    ):
        target.CopyFrom(source)
        return
    target.op_type, target.name, target.domain = source.op_type, source.name, source.domain
    target.output.extend(source.output)
    attribute = target.attribute.add(name=source.attribute[0].name, type=source.attribute[0].type)
    _copy_tensor(source.attribute[0].t, attribute.t)


def _copy_tensor(source: TensorProto, target: TensorProto) -> None:
    count = 1
    for size in source.dims:
        count *= size
    if count <= SMALL and source.data_location != TensorProto.EXTERNAL:
        target.CopyFrom(source)
        return
    target.name, target.data_type = source.name, source.data_type
    target.dims.extend(source.dims)
    target.data_location = TensorProto.EXTERNAL
    target.external_data.add(key="location", value="weights-left-on-disk")


def inferred(proto: ModelProto) -> ModelProto:
    """A skeleton with the shapes that ONNX can infer.

    Raises:
        SparsifyError: ONNX finds the graph contradictory.
    """
    try:
        return onnx.shape_inference.infer_shapes(skeleton(proto), data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        cause = str(error).strip().splitlines()[0]
        raise SparsifyError(f"the graph is invalid ({cause}); run onnx.checker on it") from error
