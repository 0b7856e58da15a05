"""Writes a model so that nothing half-written stands under its name and no input is touched."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from sparsify.errors import SparsifyError
from sparsify.model import Model
from sparsify.plugins import unknown
from sparsify.weights import copy_names, copy_synced, refer_to, relocate, weight_files

WEIGHTS = ("copy", "reference")
"""How external weights go along: as files of their own, or where they are."""


def check_output(model: Model, output: Path) -> None:
    """Refuse an output that cannot be written, or would overwrite the input, before any work.

    Raises:
        SparsifyError: no such directory, a directory of that name, or a file of the input.
    """
    if output.is_dir():
        raise SparsifyError(f"{output}: is a directory; name a file in it, such as out.onnx")
    if not output.parent.is_dir():
        raise SparsifyError(f"{output}: directory {output.parent} does not exist; create it first")
    if not os.access(output.parent, os.W_OK):
        raise SparsifyError(f"{output}: directory {output.parent} cannot be written to")
    files = weight_files(model)
    inputs = {file.resolve() for file in (model.path, *files.values())}
    copies = [output.with_name(name) for name in copy_names(output, files).values()]
    for final in (output, *copies):
        if final.resolve() in inputs:
            raise SparsifyError(f"{final}: is a file of the input; choose another output name")


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
def staged(result: ModelProto, output: Path, model: Model, weights: str) -> Iterator[Staged]:
    """Write `result`, made from `model`, beside `output` under temporary names, synced to disk.

    External data is copied or referred to, and `result` gets the locations of it. What is not
    committed before the context ends is removed.

    Raises:
        SparsifyError: weights cannot be referred to from there, or the disk fails.
    """
    if weights not in WEIGHTS:
        raise SparsifyError(unknown("way with weights", weights, WEIGHTS))
    _check_space(result, output, model, weights)
    try:
        # Copies keep the names that the model says, in a folder of their own; a model that refers
        # to weights must stand where those references hold.
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
            if weights == "copy":
                files = _copied(result, output, model, Path(folder))
                path = Path(folder) / output.name
            else:
                refer_to(result, output, weight_files(model))
                files, path = [], Path(f"{folder}.onnx")
            try:
                _write(path, result.SerializeToString())
                yield Staged(path, (*files, (path, output)))
            finally:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise SparsifyError(f"{output}: cannot be written ({error.strerror or error})") from error


def _check_space(result: ModelProto, output: Path, model: Model, weights: str) -> None:
    files = weight_files(model).values() if weights == "copy" else ()
    needed = result.ByteSize() + sum(file.stat().st_size for file in files)
    free = shutil.disk_usage(output.parent).free
    if needed > free:
        raise SparsifyError(
            f"{output}: needs {needed >> 20} MiB of disk, {free >> 20} MiB are free; make room"
        )


def write_text(path: Path, text: str) -> None:
    """Write a small text file that replaces no ONNX model.

    Raises:
        SparsifyError: the path cannot be written, or names a model.
    """
    if path.suffix == ".onnx" or path.name.endswith(".onnx.data"):
        raise SparsifyError(f"{path}: is a model's name; choose another for this file")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SparsifyError(f"{path}: cannot be written ({error.strerror})") from error


def _copied(
    result: ModelProto, output: Path, model: Model, folder: Path
) -> list[tuple[Path, Path]]:
    files = weight_files(model)
    names = copy_names(output, files)
    for location, file in files.items():
        copy_synced(file, folder / names[location])
    relocate(result, names)
    return [(folder / name, output.with_name(name)) for name in names.values()]


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
