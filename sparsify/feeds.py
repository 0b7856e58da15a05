"""Inputs to run a model on: the user's data, checked, or stand-ins that the graph suggests."""

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from sparsify.errors import SparsifyError
from sparsify.model import Model

Feeds = Mapping[str, npt.NDArray[Any]]

_BATCH, _LENGTH = 2, 128
_LARGEST_FILE = 8 << 30
_IDS_ALONG = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Slice")


def load_data(model: Model, paths: Sequence[str | Path]) -> list[Feeds]:
    """Read one set of inputs from each .npz file, arrays named as the model's inputs.

    Raises:
        SparsifyError: a file cannot be read, or names, types or shapes do not fit the model.
    """
    return [_checked(model.proto, Path(path), _read(Path(path))) for path in paths]


def stand_ins(
    model: Model,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
) -> Feeds:
    """Random inputs: normal floats, 0/1 masks, ids below the rows of the table they look up.

    Symbolic dimensions take `dims` by name, else 2 along the first axis and 128 along others;
    `shapes` gives whole shapes by input name.

    Raises:
        SparsifyError: `dims` or `shapes` name nothing in the model, or a rank does not fit.
    """
    inputs = _inputs(model.proto.graph)
    for name, info in inputs.items():
        if not info.type.HasField("tensor_type"):
            raise SparsifyError(
                f"{model.path}: input {name!r} is not a tensor; there is no stand-in"
            )
    _check_names(inputs, dims or {}, shapes or {})
    rng = np.random.default_rng(seed)
    return {
        name: _values(
            model.proto.graph, info, _shape(info, dims or {}, (shapes or {}).get(name)), rng
        )
        for name, info in inputs.items()
    }


def _inputs(graph: GraphProto) -> dict[str, ValueInfoProto]:
    stored = {tensor.name for tensor in graph.initializer}
    return {value.name: value for value in graph.input if value.name not in stored}


def _symbols(info: ValueInfoProto) -> list[str | int | None]:
    return [
        # a negative size is how some exporters write an open one
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None
        for dim in info.type.tensor_type.shape.dim
    ]


def _check_names(
    inputs: Mapping[str, ValueInfoProto],
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
) -> None:
    symbols = {dim for info in inputs.values() for dim in _symbols(info) if isinstance(dim, str)}
    for name in dims.keys() - symbols:
        known = ", ".join(sorted(symbols)) or "none"
        raise SparsifyError(f"no input has a dimension named {name!r}; named are: {known}")
    for name in shapes.keys() - inputs.keys():
        raise SparsifyError(f"no input is named {name!r}; inputs are: {', '.join(inputs)}")


def _shape(
    info: ValueInfoProto, dims: Mapping[str, int], given: Sequence[int] | None
) -> tuple[int, ...]:
    symbols = _symbols(info)
    if given is not None:
        if len(given) != len(symbols):
            raise SparsifyError(
                f"input {info.name!r} has {len(symbols)} dimensions, not {len(given)}"
            )
        return tuple(given)
    defaults = [_BATCH, *[_LENGTH] * max(0, len(symbols) - 1)]
    return tuple(
        dim if isinstance(dim, int) else dims.get(dim or "", default)
        for dim, default in zip(symbols, defaults[: len(symbols)], strict=True)
    )


def _values(
    graph: GraphProto, info: ValueInfoProto, shape: tuple[int, ...], rng: np.random.Generator
) -> npt.NDArray[Any]:
    kind = info.type.tensor_type.elem_type
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    if kind in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE):
        return rng.standard_normal(shape).astype(dtype)
    rows = _table_rows(graph, info.name)
    if kind != TensorProto.BOOL and rows is not None and "mask" not in info.name.lower():
        return rng.integers(0, rows, shape).astype(dtype)
    mask = rng.random(shape) < 0.8
    if mask.ndim:
        mask[..., 0] = True
    return mask.astype(dtype)


def _table_rows(graph: GraphProto, name: str) -> int | None:
    """The rows of the smallest stored table that an input's values index."""
    stored = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    names, rows = {name}, []
    for node in graph.node:
        if node.op_type in _IDS_ALONG and node.input and node.input[0] in names:
            names.update(node.output)
        elif node.op_type == "Gather" and node.input[1] in names and node.input[0] in stored:
            rows.append(stored[node.input[0]])
    return min(rows, default=None)


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > _LARGEST_FILE:
            raise SparsifyError(f"{path}: holds {size >> 30} GiB; split it into smaller files")
        with np.load(path, allow_pickle=False) as data:
            return {name: data[name] for name in data.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise SparsifyError(f"{path}: is not a readable .npz file ({error})") from error


def _checked(proto: ModelProto, path: Path, arrays: dict[str, npt.NDArray[Any]]) -> Feeds:
    inputs = _inputs(proto.graph)
    for what, names in (
        ("lacks", inputs.keys() - arrays.keys()),
        ("has an array that is no input:", arrays.keys() - inputs.keys()),
    ):
        if names:
            listed = ", ".join(map(repr, sorted(names)))
            raise SparsifyError(
                f"{path}: {what} {listed}; the model's inputs are {', '.join(inputs)}"
            )
    for name, info in inputs.items():
        if not info.type.HasField("tensor_type"):
            raise SparsifyError(f"{path}: input {name!r} of the model is not a tensor")
        _check_array(path, name, info, arrays[name])
    return arrays


def _check_array(path: Path, name: str, info: ValueInfoProto, array: npt.NDArray[Any]) -> None:
    symbols = _symbols(info)
    wanted = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
    if array.dtype != wanted:
        raise SparsifyError(f"{path}: {name!r} is {array.dtype}, the model takes {wanted}")
    fits = len(symbols) == array.ndim and all(
        not isinstance(dim, int) or dim == size
        for dim, size in zip(symbols, array.shape, strict=False)
    )
    if not fits:
        declared = "x".join("?" if dim is None else str(dim) for dim in symbols)
        actual = "x".join(map(str, array.shape))
        raise SparsifyError(f"{path}: {name!r} has shape {actual}, the model takes {declared}")


_ASSIGNMENT = re.compile(r"(?P<name>.+)=(?P<value>[0-9]+(x[0-9]+)*)")


def parse_dim(text: str) -> tuple[str, int]:
    """Read `NAME=SIZE`.

    Raises:
        SparsifyError: another form, or a size that is not a positive integer.
    """
    found = _ASSIGNMENT.fullmatch(text)
    if found is None or "x" in found["value"] or int(found["value"]) < 1:
        raise SparsifyError(f"dimension {text!r} is not NAME=SIZE, such as sequence=4096")
    return found["name"], int(found["value"])


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read `INPUT=1x3x896x896`.

    Raises:
        SparsifyError: another form.
    """
    found = _ASSIGNMENT.fullmatch(text)
    if found is None:
        raise SparsifyError(f"shape {text!r} is not INPUT=SIZExSIZE..., such as image=1x3x896x896")
    return found["name"], tuple(int(size) for size in found["value"].split("x"))
