"""Writes a model so that nothing half-written stands under its name and no input is touched."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from sparsify.errors import SparsifyError
from sparsify.graft import bodies

WEIGHTS = ("copy", "reference")
"""How external weights go along: as files of their own, or where they are."""


def check_output(source: Path, output: Path) -> None:
    """Refuse an output that cannot be written, before any work is done.

    Raises:
        SparsifyError: no such directory, a directory of that name, or the input itself.
    """
    if output.is_dir():
        raise SparsifyError(f"{output}: is a directory; name a file in it, such as out.onnx")
    if not output.parent.is_dir():
        raise SparsifyError(f"{output}: directory {output.parent} does not exist; create it first")
    if not os.access(output.parent, os.W_OK):
        raise SparsifyError(f"{output}: directory {output.parent} cannot be written to")
    if output.exists() and output.resolve() == source.resolve():
        raise SparsifyError(f"{output}: is the input; choose another output name")


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor whose data lies in a file beside the model."""
    yield from _external_in(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _external_in_attributes(node.attribute)


@dataclass(frozen=True)
class Staged:
    """A written model that has not got its name yet: it can be run, and put in place."""

    path: Path
    files: tuple[tuple[Path, Path], ...]

    def commit(self) -> None:
        """Give every file its final name, the model last."""
        for temporary, final in self.files:
            os.replace(temporary, final)


@contextmanager
def staged(
    model: ModelProto, output: Path, source: Path, weights: str = "copy"
) -> Iterator[Staged]:
    """Write `model`, read from `source`, beside `output` under temporary names, synced to disk.

    External data is copied or referred to, and `model` gets the locations of it. What is not
    committed before the context ends is removed.

    Raises:
        SparsifyError: a data file is missing or lies outside the model's directory, or the disk
            fails.
    """
    tensors = list(external_tensors(model))
    try:
        # Copies keep the names that the model says, in a folder of their own; a model that refers
        # to weights must stand where those references hold.
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
            if weights == "copy":
                files = _copy_weights(tensors, output, source, Path(folder))
                path = Path(folder) / output.name
            else:
                _refer_to_weights(tensors, output, source)
                files, path = [], Path(f"{folder}.onnx")
            try:
                _write(path, model.SerializeToString())
                yield Staged(path, (*files, (path, output)))
            finally:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise SparsifyError(f"{output}: cannot be written ({error.strerror or error})") from error


def weight_files(tensors: Iterable[TensorProto], source: Path) -> dict[str, Path]:
    """The data files of external tensors of the model `source`, by the location they name.

    Raises:
        SparsifyError: a location leaves the model's directory, or names no regular file.
    """
    files = {}
    for location in sorted({_location(tensor) for tensor in tensors}):
        path = PurePosixPath(location)
        if path.is_absolute() or ".." in path.parts or not location:
            raise SparsifyError(
                f"{source}: weights at {location!r} lie outside its directory; refused"
            )
        file = source.parent / location
        if not file.is_file():
            raise SparsifyError(f"{source}: its data file {file} is missing; put it there")
        files[location] = file
    return files


def _copy_weights(
    tensors: list[TensorProto], output: Path, source: Path, folder: Path
) -> list[tuple[Path, Path]]:
    pending, names = [], {}
    for index, (location, file) in enumerate(weight_files(tensors, source).items()):
        final = output.with_name(f"{output.name}.data{index or ''}")
        if final.exists() and final.resolve() == file.resolve():
            raise SparsifyError(f"{final}: is the input's data file; choose another output name")
        names[location] = final.name
        _copy(file, folder / final.name)
        pending.append((folder / final.name, final))
    for tensor in tensors:
        _relocate(tensor, names[_location(tensor)])
    return pending


def _refer_to_weights(tensors: list[TensorProto], output: Path, source: Path) -> None:
    folder, names = output.parent.resolve(), {}
    for location, file in weight_files(tensors, source).items():
        if not file.resolve().is_relative_to(folder):
            raise SparsifyError(
                f"{output}: cannot refer to {file}, which is not below its directory; "
                "use --weights copy"
            )
        names[location] = file.resolve().relative_to(folder).as_posix()
    for tensor in tensors:
        _relocate(tensor, names[_location(tensor)])


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as origin, target.open("wb") as file:
        shutil.copyfileobj(origin, file, length=1 << 24)
        file.flush()
        os.fsync(file.fileno())


def _location(tensor: TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _relocate(tensor: TensorProto, location: str) -> None:
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = location


def _external_in(graph: GraphProto) -> Iterator[TensorProto]:
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            yield tensor
    for node in graph.node:
        yield from _external_in_attributes(node.attribute)
        for body in bodies(node):
            yield from _external_in(body)


def _external_in_attributes(attributes: Iterable[AttributeProto]) -> Iterator[TensorProto]:
    for attribute in attributes:
        held = [attribute.t] if attribute.type == AttributeProto.TENSOR else attribute.tensors
        for tensor in held:
            if tensor.data_location == TensorProto.EXTERNAL:
                yield tensor
