"""From the two products up to Q, K and V: factors taken out, transposes and repeats undone."""

from dataclasses import dataclass, replace

import numpy as np

from sparsify.constants import Dims, axis_attribute, constant, dims
from sparsify.layout import Step, Transpose, Unsqueeze
from sparsify.site import Operand
from sparsify.view import Tensor, element_type, producer
from sparsify_plugins.matchers.walk import passes_through, scaled

_INFERRED = "unk__"
"""How shape inference names a size that it does not know."""


@dataclass(frozen=True)
class Source:
    """A tensor of the graph, the permutation that leads from it, and the factor taken out."""

    tensor: Tensor
    perm: tuple[int, ...]
    factor: float = 1.0

    @property
    def rank(self) -> int:
        """Dimensions of the tensor."""
        return len(self.perm)

    @property
    def in_place(self) -> bool:
        """Whether the tensor has the wanted layout already."""
        return self.perm == tuple(range(self.rank))

    def sizes(self) -> Dims:
        """Dimensions after the permutation, None where open."""
        known = dims(self.tensor)
        if known is None or len(known) != self.rank:
            return (None,) * self.rank
        return tuple(known[axis] for axis in self.perm)

    def extents(self) -> tuple[int | str | None, ...]:
        """Sizes of batch, heads, length and dim: a number, a symbol the model declares, or None."""
        names = self.tensor.shape or ()
        sizes: list[int | str | None] = list(self.sizes())
        for axis, size in enumerate(sizes):
            name = names[self.perm[axis]] if len(names) == self.rank else None
            if size is None and isinstance(name, str) and not name.startswith(_INFERRED):
                sizes[axis] = name
        return (None,) * (4 - self.rank) + tuple(sizes)

    def operand(self) -> Operand:
        """The operand in the operator's four dimensions."""
        steps: tuple[Step, ...] = () if self.in_place else (Transpose(self.perm),)
        if self.rank < 4:
            steps = (*steps, Unsqueeze(tuple(range(4 - self.rank))))
        return Operand(self.tensor.name, steps)


def query_source(tensor: Tensor, rank: int) -> Source:
    """Q, without the factors applied to it."""
    return _climb(Source(tensor, tuple(range(rank))))


def key_source(tensor: Tensor, rank: int) -> Source:
    """K, from the tensor that the product takes as K^T."""
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    return _climb(Source(tensor, swapped))


def value_source(tensor: Tensor, rank: int) -> Source:
    """V; a factor on V is not part of an attention and stays."""
    return Source(tensor, tuple(range(rank)))


def unrepeated(source: Source) -> tuple[Source, int] | None:
    """The tensor before Unsqueeze, Expand, Reshape repeat each head, and how often they do."""
    if not source.in_place or source.rank != 4:
        return None
    reshape = producer(source.tensor, "Reshape")
    expand = producer(reshape.inputs[0], "Expand") if reshape is not None else None
    unsqueeze = producer(expand.inputs[0], "Unsqueeze") if expand is not None else None
    if unsqueeze is None or axis_attribute(unsqueeze, "axes", 1) != [2]:
        return None
    target = constant(expand.inputs[1])  # type: ignore[union-attr]
    if target is None or target.size != 5 or np.isnan(target[2]) or target[2] < 2:
        return None
    return replace(source, tensor=unsqueeze.inputs[0]), int(target[2])


def _climb(source: Source) -> Source:
    """Take out factors and transposes until the wanted layout stands there, or nothing helps."""
    while True:
        above = _above(source)
        if above is None:
            return source
        source = above


def _above(source: Source) -> Source | None:
    node = producer(source.tensor)
    if node is None:
        return None
    factor = scaled(node)
    if factor is not None:
        return replace(source, tensor=factor[0], factor=source.factor * factor[1])
    if passes_through(node) and element_type(node.inputs[0]) == element_type(source.tensor):
        return replace(source, tensor=node.inputs[0])
    if source.in_place:
        return None
    if node.op == "Transpose" and len(node.attrs.get("perm", ())) == source.rank:
        perm = tuple(node.attrs["perm"][axis] for axis in source.perm)
        return replace(source, tensor=node.inputs[0], perm=perm)
    return _through_three(source)


def _through_three(source: Source) -> Source | None:
    """K^T made by a reshape to three dimensions, a transpose, and a reshape back."""
    swapped = (*range(source.rank - 2), source.rank - 1, source.rank - 2)
    outer = producer(source.tensor, "Reshape")
    inner = producer(outer.inputs[0], "Transpose") if outer is not None else None
    first = producer(inner.inputs[0], "Reshape") if inner is not None else None
    if source.perm != swapped or first is None or source.rank != 4:
        return None
    if list(inner.attrs.get("perm", ())) != [0, 2, 1]:  # type: ignore[union-attr]
        return None
    return replace(source, tensor=first.inputs[0], perm=tuple(range(source.rank)))
