"""Grids as arrays: positions for rules, the mask a pattern answers, the selection it means."""

from typing import cast

import numpy as np
import numpy.typing as npt

from sparsify.errors import SparsifyError
from sparsify.pattern import Blocks, Grid, GridPattern, Pattern, RulePattern, Value

Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]


def pattern_name(pattern: object) -> str:
    """How messages call a pattern: the name of its class."""
    return type(pattern).__name__


def blocks_of(grid: Grid) -> Blocks:
    """Compute the positions of one grid, as numpy arrays."""
    q_first = np.arange(grid.q_blocks)[:, None] * grid.q_block + grid.offset
    k_first = np.arange(grid.k_blocks)[None, :] * grid.k_block
    arrays = (
        q_first,
        q_first + (grid.q_block - 1),
        k_first,
        k_first + (grid.k_block - 1),
        np.asarray(grid.q_len),
        np.asarray(grid.k_len),
    )
    return Blocks(*(cast(Value, array.astype(np.int64)) for array in arrays))


def permitted(blocks: Blocks, offset: Value | int) -> Value:
    """Mark blocks in which, under causality, some existing query may see some key."""
    return (blocks.k_first <= blocks.q_last) & (blocks.k_first < blocks.q_length + offset)


def grid_of(pattern: RulePattern | GridPattern, grid: Grid) -> Bools:
    """Ask a rule or grid pattern which blocks it keeps: `[heads or 1, q_blocks, k_blocks]`.

    Raises:
        SparsifyError: another type or shape, a query block without a permitted block, or too many
            blocks.
    """
    grid.check_size()
    if isinstance(pattern, RulePattern):
        answer = np.asarray(pattern.rule(blocks_of(grid)))
        if answer.ndim <= 2:
            answer = np.broadcast_to(answer, (1, grid.q_blocks, grid.k_blocks))
    else:
        answer = np.asarray(pattern.keep(grid))
    _reject_wrong_form(pattern, grid, answer)
    mask = answer.astype(bool)
    _reject_empty_rows(pattern, grid, mask)
    return mask


def _reject_wrong_form(pattern: Pattern, grid: Grid, answer: npt.NDArray[np.generic]) -> None:
    allowed = {(heads, grid.q_blocks, grid.k_blocks) for heads in (1, grid.heads)}
    if answer.dtype != np.bool_ or answer.shape not in allowed:
        raise SparsifyError(
            f"pattern {pattern_name(pattern)} answered {answer.dtype} {list(answer.shape)} "
            f"for a grid of bool [1 or {grid.heads}, {grid.q_blocks}, {grid.k_blocks}]"
        )


def _reject_empty_rows(pattern: Pattern, grid: Grid, mask: Bools) -> None:
    allowed = grid.permitted()
    empty = ~(mask & allowed).any(axis=-1) & allowed.any(axis=-1)
    if empty.any():
        head, row = np.argwhere(empty)[0]
        raise SparsifyError(
            f"pattern {pattern_name(pattern)} keeps no permitted block for query block {row} "
            f"of head {head} ({grid.q_len} queries, {grid.k_len} keys); "
            "every query block needs at least one"
        )


def selection_from_grid(mask: Bools) -> tuple[Int32s, Int32s]:
    """Turn a grid [h, Nq, Nk] into `block_indices` [1, h, Nq, C] and `block_count` [1, h, Nq].

    A row that keeps nothing counts -1, which keeps every block.
    """
    kept = mask.sum(axis=-1)
    k_blocks = mask.shape[-1]
    ids = np.sort(np.where(mask, np.arange(k_blocks), k_blocks), axis=-1)
    ids = ids[..., : max(int(kept.max(initial=1)), 1)]
    indices = np.where(ids < k_blocks, ids, -1).astype(np.int32)
    return indices[None], np.where(kept > 0, kept, -1).astype(np.int32)[None]


def grid_from_selection(indices: Int32s, count: Int32s, k_blocks: int) -> Bools:
    """Expand a selection to the grid [B, h, Nq, Nk] it means; ids beyond the grid are dropped."""
    valid = (np.arange(indices.shape[-1]) < count[..., None]) & (indices < k_blocks)
    hits = np.where(valid, indices, -1)[..., None] == np.arange(k_blocks)
    return np.asarray(hits.any(axis=-2) | (count < 0)[..., None])
