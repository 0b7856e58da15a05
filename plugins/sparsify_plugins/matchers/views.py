"""Scores of any rank as `[batch, heads, queries, keys]`: what folds, and what it means for masks.

Exporters reshape scores between the product and the Softmax: batch times heads in one dimension
(`[B*H, S, S]`), windows split off the batch (`[B, windows, H, S, S]`), heads in groups
(`[B, kv_heads, group, S, S]`). A mask is added wherever that is convenient.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparsify.constants import Dims
from sparsify.layout import Merge, Split, Squeeze, Step, Unsqueeze
from sparsify.site import Mask


@dataclass(frozen=True)
class Folding:
    """How views of other ranks relate to four dimensions.

    `heads` is the size of the second where views fold it into the first; `grouped` says that a view
    of rank 5 splits the heads and not the batch; `inner` is the size of the inner split dimension.
    `flat` says that no view tells batch and heads apart: they are taken as heads of one batch.
    `sizes` are those of the scores, as far as a view tells them.
    """

    heads: int | None = None
    grouped: bool = False
    inner: int | None = None
    flat: bool = False
    sizes: Dims = (None,) * 4

    def steps(self, rank: int, *, ones: bool = False) -> tuple[Step, ...] | None:
        """From a tensor `[lead.., length, dim]` of `rank` to four dimensions; None if unknown.

        `ones` says that the inner dimension of a group has size 1.
        """
        if rank == 4:
            return ()
        if rank == 2 or (rank == 3 and self.flat):
            return (Unsqueeze(tuple(range(4 - rank))),)
        if rank == 3:
            return None if self.heads is None else (Split(0, 3, inner=self.heads),)
        if rank != 5:
            return None
        if self.grouped and ones:
            return (Squeeze((2,)),)
        return (Merge(1 if self.grouped else 0, 5, inner=self.inner or 1),)

    def result(self, rank: int) -> tuple[Step, ...] | None:
        """From the operator's four dimensions to a view of `rank`; None if a size is unknown."""
        if rank == 4:
            return ()
        if rank == 2 or (rank == 3 and self.flat):
            return (Squeeze(tuple(range(4 - rank))),)
        if rank == 3:
            return (Merge(0, 4, inner=self.heads or 1),)
        if rank != 5 or self.inner is None:
            return None
        return (Split(1 if self.grouped else 0, 4, inner=self.inner),)

    @property
    def windows(self) -> int:
        """How many windows of one image follow each other in the batch, where that is known."""
        return 1 if self.grouped else self.inner or 1

    def mask(self, mask: Mask, rank: int) -> Mask | None:
        """A mask that applies to a view of `rank`, as one for four dimensions."""
        missing = rank - len(mask.sizes)
        if missing > 0 and rank == 5:
            mask = _unsqueezed(mask, missing)
        if rank in (2, 4) or (rank == 3 and len(mask.sizes) < 3):
            return _unsqueezed(mask, 2) if rank == 2 and len(mask.sizes) == 2 else mask
        if rank == 3:
            return self._folded(mask)
        if rank == 5:
            return self._grouped(mask) if self.grouped else self._windowed(mask)
        return None

    def _folded(self, mask: Mask) -> Mask | None:
        if self.flat or mask.sizes[0] == 1:
            return _unsqueezed(mask, 1)
        if self.heads is None:
            return None
        sizes = (None, self.heads, *mask.sizes[1:])
        return _stepped(mask, Split(0, 3, inner=self.heads), sizes)

    def _windowed(self, mask: Mask) -> Mask | None:
        outer, inner, *rest = mask.sizes
        inner = inner or self.inner
        if outer == 1:
            return replace(_stepped(mask, Squeeze((0,)), (inner, *rest)), tiled=inner != 1)
        if inner == 1 and self.inner != 1:  # one mask for all windows of an image
            return None
        merged = _stepped(mask, Merge(0, 5, inner=inner or 1), (None, *rest))
        return replace(merged, tiled=outer is None)  # an open size may turn out to be 1

    def _grouped(self, mask: Mask) -> Mask | None:
        batch, outer, inner, *rest = mask.sizes
        if inner == 1 and outer == 1:
            return _stepped(mask, Squeeze((2,)), (batch, 1, *rest))
        if inner is None or outer in (1, None):
            return None
        return _stepped(mask, Merge(1, 5, inner=inner), (batch, outer * inner, *rest))


def folding_of(views: Sequence[Dims], query: Dims, key: Dims, heads: int | None) -> Folding | None:
    """How the views of one site fold; `heads` is what its operands tell about views of rank 3."""
    by_rank = {len(view): view for view in reversed(views)}
    four, five = by_rank.get(4), by_rank.get(5)
    if not by_rank or not 2 <= min(by_rank) <= max(by_rank) <= 5:
        return None
    known = four[1] if four is not None else None
    if five is None:
        flat = 3 in by_rank and four is None and heads is None
        return Folding(heads=known or heads, flat=flat, sizes=_sizes(four, views))
    grouped = _grouped(five, four, query, key)
    inner = five[2] if grouped else five[1]
    sizes = _sizes(four, views)
    pair = five[1:3]
    heads = pair[0] * pair[1] if grouped and None not in pair else None if grouped else five[2]  # type: ignore[operator]
    return Folding(heads=known or heads, grouped=grouped, inner=inner, sizes=sizes)


def _sizes(four: Dims | None, views: Sequence[Dims]) -> Dims:
    """Batch and heads from the view of rank 4, lengths from any that tells them."""
    batch, heads, *_ = four or (None, None)
    lengths = [next((v[axis] for v in views if v[axis] is not None), None) for axis in (-2, -1)]
    return batch, heads, lengths[0], lengths[1]


def _grouped(five: Dims, four: Dims | None, query: Dims, key: Dims) -> bool:
    """Whether five dimensions are batch, kv_heads, group, and not batch, windows, heads."""
    if len(key) == 5 and key[2] == 1 and query[2] != 1:
        return True
    if four is None or four[1] is None or four[1] == five[2]:
        return False
    return None not in five[1:3] and four[1] == five[1] * five[2]  # type: ignore[operator]


def _stepped(mask: Mask, step: Step, sizes: Sequence[int | None]) -> Mask:
    return replace(mask, operand=mask.operand.then(step), sizes=tuple(sizes))


def _unsqueezed(mask: Mask, count: int) -> Mask:
    return _stepped(mask, Unsqueeze(tuple(range(count))), ((1,) * count) + mask.sizes)
