"""External weights: the files that a model's tensors lie in, checked, copied or referred to."""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from sparsify.errors import SparsifyError
from sparsify.model import Model, byte_size
from sparsify.uses import bodies


def external_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Every tensor whose data lies in a file beside the model."""
    yield from _in_graph(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _in_attributes(node.attribute)


def weight_files(model: Model) -> dict[str, Path]:
    """The data files of a model by the location that its tensors name.

    Raises:
        SparsifyError: a location leaves the model's directory, names no regular file, or one
            that is shorter than its tensors.
    """
    needed: dict[str, int] = {}
    for tensor in external_tensors(model.proto):
        location = _entry(tensor, "location")
        size = int(_entry(tensor, "length") or byte_size(tensor))
        end = int(_entry(tensor, "offset") or 0) + size
        needed[location] = max(end, needed.get(location, 0))
    return {name: _data_file(model, name, size) for name, size in sorted(needed.items())}


def copy_names(output: Path, locations: Iterable[str]) -> dict[str, str]:
    """The name that each data file gets beside `output`."""
    return {name: f"{output.name}.data{i or ''}" for i, name in enumerate(locations)}


def refer_to(proto: ModelProto, output: Path, files: dict[str, Path]) -> None:
    """Let the tensors of a model that will stand at `output` refer to existing files.

    Raises:
        SparsifyError: a file does not lie in or below the output's directory.
    """
    folder, names = output.parent.resolve(), {}
    for location, file in files.items():
        if not file.resolve().is_relative_to(folder):
            raise SparsifyError(
                f"{output}: cannot refer to {file}, which is not below its directory; "
                "use --weights copy"
            )
        names[location] = file.resolve().relative_to(folder).as_posix()
    relocate(proto, names)


def relocate(proto: ModelProto, names: dict[str, str]) -> None:
    """Change where external tensors say that they lie."""
    for tensor in external_tensors(proto):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[entry.value]


def copy_synced(source: Path, target: Path) -> None:
    """Copy a file in pieces and wait until it is on disk."""
    with source.open("rb") as origin, target.open("wb") as file:
        shutil.copyfileobj(origin, file, length=1 << 24)
        file.flush()
        os.fsync(file.fileno())


def _data_file(model: Model, location: str, size: int) -> Path:
    path = PurePosixPath(location)
    if path.is_absolute() or ".." in path.parts or not location:
        raise SparsifyError(
            f"{model.path}: its weights at {location!r} lie outside its directory; refused"
        )
    file = model.folder / location
    if not file.is_file():
        raise SparsifyError(f"{model.path}: its data file {file} is missing; put it there")
    if file.stat().st_size < size:
        raise SparsifyError(
            f"{model.path}: its data file {file} is cut short ({file.stat().st_size} of {size} "
            "bytes); get it again"
        )
    return file


def _entry(tensor: TensorProto, key: str) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == key), "")


def _in_graph(graph: GraphProto) -> Iterator[TensorProto]:
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            yield tensor
    for node in graph.node:
        yield from _in_attributes(node.attribute)
        for body in bodies(node):
            yield from _in_graph(body)


def _in_attributes(attributes: Iterable[AttributeProto]) -> Iterator[TensorProto]:
    for attribute in attributes:
        held = [attribute.t] if attribute.type == AttributeProto.TENSOR else attribute.tensors
        for tensor in held:
            if tensor.data_location == TensorProto.EXTERNAL:
                yield tensor
