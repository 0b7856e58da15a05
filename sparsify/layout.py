"""How a tensor of the graph becomes an operand of the operator: steps that can be undone.

Steps are written as nodes when a model is rewritten, and undone on arrays when a trial input for
the original nodes is made from one in the operator's layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsify.builder import Builder
from sparsify.errors import SparsifyError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Transpose:
    """Dimensions in another order; axis i of the result is axis `perm[i]` of the source."""

    perm: tuple[int, ...]

    def emit(self, builder: Builder, name: str) -> str:
        return builder.transpose(name, self.perm)

    def undo(self, values: Array) -> Array:
        return np.ascontiguousarray(values.transpose(np.argsort(self.perm)))

    def source(self, axis: int) -> int | None:
        return self.perm[axis]


@dataclass(frozen=True)
class Unsqueeze:
    """Dimensions of size 1 inserted at `axes` of the result."""

    axes: tuple[int, ...]

    def emit(self, builder: Builder, name: str) -> str:
        return builder.unsqueeze(name, self.axes)

    def undo(self, values: Array) -> Array:
        return np.squeeze(values, self.axes)

    def source(self, axis: int) -> int | None:
        return None if axis in self.axes else axis - sum(a < axis for a in self.axes)


@dataclass(frozen=True)
class Squeeze:
    """Dimensions of size 1 at `axes` of the source taken out."""

    axes: tuple[int, ...]

    def emit(self, builder: Builder, name: str) -> str:
        return builder.squeeze(name, self.axes)

    def undo(self, values: Array) -> Array:
        return np.expand_dims(values, self.axes)

    def source(self, axis: int) -> int | None:
        for gone in sorted(self.axes):
            axis += gone <= axis
        return axis


@dataclass(frozen=True)
class Split:
    """Axis `axis` of a tensor of `rank` dimensions made two; of `outer` and `inner` one is -1."""

    axis: int
    rank: int
    outer: int = -1
    inner: int = -1

    def emit(self, builder: Builder, name: str) -> str:
        return _reshape(builder, name, self.rank, self.axis, 1, (self.outer, self.inner))

    def undo(self, values: Array) -> Array:
        shape = values.shape
        return values.reshape(*shape[: self.axis], -1, *shape[self.axis + 2 :])

    def source(self, axis: int) -> int | None:
        if axis in (self.axis, self.axis + 1):
            return None
        return axis if axis < self.axis else axis - 1


@dataclass(frozen=True)
class Merge:
    """Axes `axis` and `axis + 1` of a tensor of `rank` dimensions made one.

    `inner` is the size of the second, or what a trial may assume where the graph leaves it open.
    """

    axis: int
    rank: int
    inner: int = 1

    def emit(self, builder: Builder, name: str) -> str:
        return _reshape(builder, name, self.rank, self.axis, 2, (-1,))

    def undo(self, values: Array) -> Array:
        shape = values.shape
        return values.reshape(*shape[: self.axis], -1, self.inner, *shape[self.axis + 1 :])

    def source(self, axis: int) -> int | None:
        if axis == self.axis:
            return None
        return axis if axis < self.axis else axis + 1


@dataclass(frozen=True)
class Cast:
    """The same numbers in another element type (an ONNX data type)."""

    to: int

    def emit(self, builder: Builder, name: str) -> str:
        return builder.cast(name, self.to)

    def undo(self, values: Array) -> Array:
        return values

    def source(self, axis: int) -> int | None:
        return axis


Step = Transpose | Unsqueeze | Squeeze | Split | Merge | Cast


def _reshape(
    builder: Builder, name: str, rank: int, axis: int, width: int, sizes: Sequence[int]
) -> str:
    """Reshape `width` axes of `rank` to `sizes`; a later axis keeps its size by its number."""
    head, tail = [0] * axis, range(axis + width, rank)
    if width == len(sizes):
        return builder.reshape(name, (*head, *sizes, *(0 for _ in tail)))
    if not tail:
        return builder.reshape(name, (*head, *sizes))
    target = builder.concat([builder.ints(*head, *sizes), builder.dims(name, *tail)], 0)
    return builder.reshape(name, target)


def emit_steps(builder: Builder, name: str, steps: Sequence[Step]) -> str:
    """Write the nodes of all steps; the name of the result."""
    for step in steps:
        name = step.emit(builder, name)
    return name


def undo_steps(values: Array, steps: Sequence[Step]) -> Array:
    """The array from which the steps lead to `values`.

    Raises:
        SparsifyError: no array does, since sizes do not divide, or are not 1 where they must be.
    """
    try:
        for step in reversed(steps):
            values = step.undo(values)
    except ValueError as error:
        raise SparsifyError(f"a trial of {list(values.shape)} does not fit: {error}") from error
    return values


def is_one(steps: Sequence[Step], axis: int) -> bool:
    """Whether an axis of the result is one that a step inserted."""
    place: int | None = axis
    for step in reversed(steps):
        assert place is not None
        inserted = isinstance(step, Unsqueeze) and place in step.axes
        place = step.source(place)
        if place is None:
            return inserted
    return False


def batch_multiple(steps: Sequence[Step]) -> int:
    """What the first size of the result is a multiple of, by the merges that lead to it."""
    return int(np.prod([step.inner for step in steps if isinstance(step, Merge) and not step.axis]))
