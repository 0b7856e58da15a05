"""What one site asks of a device: its sizes and which keys are computed, as a workload."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from sparsify.grids import grid_of
from sparsify.pattern import DynamicPattern, Grid, Pattern
from sparsify.site import Mask, Site
from sparsify.workload import NO_SELECTOR, SelectorWork, Workload, choosing

_DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
}

_HEADS, _HEAD_DIM = 1, 64
"""What is assumed where the graph does not tell."""

Ints = npt.NDArray[np.int64]


def exact_work(site: Site) -> Workload | None:
    """The site with every permitted score computed; None where a length is not known."""
    if site.q_length is None or site.k_length is None:
        return None
    added = [mask for mask in site.masks if not mask.forbids and not mask.multiplies]
    forbidding = [mask for mask in site.masks if mask.forbids]
    head_dim = site.head_dim or site.value_dim or _HEAD_DIM
    heads = site.q_heads or site.kv_heads or _HEADS
    work = Workload(
        batch=site.batch or 1,
        heads=heads,
        kv_heads=site.kv_heads or site.q_heads or _HEADS,
        q_length=site.q_length,
        k_length=site.k_length,
        head_dim=head_dim,
        value_dim=site.value_dim or head_dim,
        dtype=_DTYPES.get(site.element_type, "float32"),
        bias_heads=max((_tables(mask, heads) for mask in added), default=0),
        mask_heads=max((_tables(mask, heads) for mask in forbidding), default=0),
    )
    if not site.causal and max(site.left_window, site.right_window) < 0:
        return work
    return replace(work, kept=_histogram(_seen(site, work)[None, :], work))


def _tables(mask: Mask, heads: int) -> int:
    """How many heads have a table of their own for every query and key.

    0 where all queries share a row: such a row costs next to nothing. Where the graph does not tell
    the heads apart, each has its own.
    """
    sizes = (1, 1, 1, *mask.sizes)
    if sizes[-2] == 1:
        return 0
    return 1 if sizes[-3] == 1 else heads


def pattern_work(site: Site, pattern: Pattern, residual: str) -> Workload | None:
    """The site with a pattern's selection; None where lengths or density are not known yet.

    Raises:
        SparsifyError: the pattern does not fit the grid.
    """
    exact = exact_work(site)
    if exact is None:
        return None
    work = replace(
        exact,
        kept=(),
        q_block=pattern.q_block,
        k_block=pattern.k_block,
        residual=residual,
        residual_block=pattern.k_block if pattern.k_block > 1 else exact.k_block,
    )
    grid = grid_at(pattern, site, work)
    chosen = _chosen(pattern, grid)
    if chosen is None:
        return None
    seen = _seen(site, work)
    return replace(
        work,
        kept=_histogram(np.minimum(chosen, seen[None, :]), work),
        seen=int(seen.sum()) * work.batch * work.heads,
        selector=_selector(pattern, grid, work),
    )


def grid_at(pattern: Pattern, site: Site, work: Workload) -> Grid:
    """The grid of a pattern's blocks at the lengths of a workload."""
    return Grid(
        heads=work.heads,
        kv_heads=work.kv_heads,
        q_len=work.q_length,
        k_len=work.k_length,
        q_block=pattern.q_block,
        k_block=pattern.k_block,
        offset=_offset(site, work),
        causal=site.causal,
    )


def _chosen(pattern: Pattern, grid: Grid) -> Ints | None:
    """How many keys are in the blocks that each query block keeps: `[heads or 1, q_blocks]`."""
    if not isinstance(pattern, DynamicPattern):
        kept = grid_of(pattern, grid) & grid.permitted()
        first = np.arange(grid.k_blocks) * grid.k_block
        keys: Ints = kept.astype(np.int64) @ np.minimum(grid.k_block, grid.k_len - first)
        return keys
    shares = np.atleast_1d(np.asarray(getattr(pattern, "density", None), dtype=float))
    if np.isnan(shares).any() or len(shares) not in (1, grid.heads):
        return None
    counts = np.rint(shares[:, None] * grid.permitted_blocks()[None, :])
    chosen: Ints = np.maximum(counts, 1).astype(np.int64) * grid.k_block
    return chosen


def _seen(site: Site, work: Workload) -> Ints:
    """How many keys the queries of each block may see by position, from the first to the last."""
    first = np.arange(-(-work.q_length // work.q_block)) * work.q_block
    last = np.minimum(first + work.q_block, work.q_length) - 1
    first, last = first + _offset(site, work), last + _offset(site, work)
    right = 0 if site.causal else site.right_window
    end = last + right + 1 if right >= 0 else np.full_like(last, work.k_length)
    begin = first - site.left_window if site.left_window >= 0 else np.zeros_like(first)
    return np.asarray(np.clip(end, 1, work.k_length) - np.clip(begin, 0, work.k_length - 1))


def _offset(site: Site, work: Workload) -> int:
    """Position of query 0 among the keys, where it is known before running."""
    return max(0, work.k_length - work.q_length) if site.bottom_right else 0


def _histogram(keys: Ints, work: Workload) -> tuple[tuple[int, int], ...]:
    """Count query blocks by their keys; rows of one head stand for all heads and batches."""
    times = work.batch * work.heads // keys.shape[0]
    values, counts = np.unique(np.clip(keys, 0, work.k_length), return_counts=True)
    return tuple((int(v), int(c) * times) for v, c in zip(values, counts, strict=True))


def _selector(pattern: Pattern, grid: Grid, work: Workload) -> SelectorWork:
    """What a dynamic pattern says that choosing takes; else that of mean keys."""
    if not isinstance(pattern, DynamicPattern):
        return NO_SELECTOR
    told = getattr(pattern, "work", None)
    if told is None:
        return choosing(work)
    each: SelectorWork = told(grid, work.head_dim)
    return replace(
        each,
        macs=each.macs * work.batch,
        scores=each.scores * work.batch,
        choices=each.choices * work.batch,
        elements=each.elements * work.batch,
    )
