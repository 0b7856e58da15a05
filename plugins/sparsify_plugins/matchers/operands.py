"""From the two products up to Q, K and V: factors taken out, transposes and repeats undone."""

from dataclasses import dataclass, replace

import numpy as np

from sparsify.constants import Dims, axis_attribute, constant, dims
from sparsify.layout import Step, Transpose, Unsqueeze
from sparsify.site import Operand
from sparsify.view import Tensor, element_type, producer
from sparsify_plugins.matchers.products import Factor
from sparsify_plugins.matchers.walk import passes_through, scaled


@dataclass(frozen=True)
class Source:
    """A tensor of the graph, the steps that lead from it, and the factor taken out.

    First it is transposed by `perm`, then `steps` are taken; the result is `[lead.., length, dim]`.
    """

    tensor: Tensor
    perm: tuple[int, ...]
    factor: float = 1.0
    steps: tuple[Step, ...] = ()

    @property
    def in_place(self) -> bool:
        """Whether the tensor needs no transpose."""
        return self.perm == tuple(range(len(self.perm)))

    @property
    def swapped(self) -> bool:
        """Whether the tensor has its last two dimensions the other way round."""
        rank = len(self.perm)
        return self.perm == (*range(rank - 2), rank - 1, rank - 2)

    def sizes(self) -> Dims:
        """Dimensions of the transposed tensor, None where open."""
        known = dims(self.tensor)
        if known is None or len(known) != len(self.perm):
            return (None,) * len(self.perm)
        return tuple(known[axis] for axis in self.perm)

    def symbols(self, declared: frozenset[str]) -> tuple[int | str | None, ...]:
        """Sizes, with the names of those that the inputs of the graph declare."""
        names = self.tensor.shape or ()
        found: list[int | str | None] = list(self.sizes())
        for axis, size in enumerate(found):
            name = names[self.perm[axis]] if len(names) == len(self.perm) else None
            if size is None and name in declared:
                found[axis] = name
        return tuple(found)

    def operand(self) -> Operand:
        """The tensor with all steps."""
        steps: tuple[Step, ...] = () if self.in_place else (Transpose(self.perm),)
        return Operand(self.tensor.name, (*steps, *self.steps))


def source_of(factor: Factor) -> Source:
    """A factor of a product, before anything is looked through."""
    steps = (Unsqueeze(factor.unsqueeze),) if factor.unsqueeze else ()
    return Source(factor.tensor, factor.perm, steps=steps)


def climbed(source: Source) -> Source:
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
    if node.op == "Transpose" and len(node.attrs.get("perm", ())) == len(source.perm):
        perm = tuple(node.attrs["perm"][axis] for axis in source.perm)
        return replace(source, tensor=node.inputs[0], perm=perm)
    return _through_three(source)


def _through_three(source: Source) -> Source | None:
    """K^T made by a reshape to three dimensions, a transpose, and a reshape back."""
    outer = producer(source.tensor, "Reshape")
    inner = producer(outer.inputs[0], "Transpose") if outer is not None else None
    first = producer(inner.inputs[0], "Reshape") if inner is not None else None
    if not source.swapped or first is None or len(source.perm) != 4:
        return None
    if list(inner.attrs.get("perm", ())) != [0, 2, 1]:  # type: ignore[union-attr]
        return None
    return replace(source, tensor=first.inputs[0], perm=tuple(range(4)))


def unfolded(source: Source) -> Source | None:
    """Four dimensions of a tensor whose batch and heads a Reshape folded into one."""
    reshape = producer(source.tensor, "Reshape")
    before = None if reshape is None else dims(reshape.inputs[0])
    if before is None or len(before) != 4 or len(source.perm) != 3 or source.perm[0] != 0:
        return None
    after = dims(source.tensor) or (None,) * 3
    pairs = zip(before[2:], after[1:], strict=True)
    if any(None not in pair and pair[0] != pair[1] for pair in pairs) or source.steps:
        return None
    perm = (0, 1, *(axis + 1 for axis in source.perm[1:]))
    return climbed(replace(source, tensor=reshape.inputs[0], perm=perm))  # type: ignore[union-attr]


def unrepeated(source: Source) -> tuple[Source, int] | None:
    """The tensor before Unsqueeze, Expand, Reshape repeat each head, and how often they do."""
    if not source.in_place or len(source.perm) != 4 or source.steps:
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
