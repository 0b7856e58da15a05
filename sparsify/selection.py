"""Turns any pattern into a selection: nodes or constants that name the blocks to compute."""

from typing import cast

import numpy as np
from onnx import TensorProto

from sparsify.builder import Builder
from sparsify.errors import SparsifyError
from sparsify.graph_value import GraphValue, graph_blocks
from sparsify.grids import (
    Bools,
    blocks_of,
    grid_from_selection,
    grid_of,
    pattern_name,
    permitted,
    selection_from_grid,
)
from sparsify.pattern import (
    Blocks,
    DynamicPattern,
    Grid,
    GridPattern,
    Pattern,
    RulePattern,
    Selection,
    SiteInputs,
    Value,
)

__all__ = [
    "GraphValue",
    "blocks_of",
    "emit_ascending",
    "emit_selection",
    "emit_selection_from_grid",
    "graph_blocks",
    "grid_from_selection",
    "grid_of",
    "pattern_name",
    "permitted",
    "selection_from_grid",
]


def emit_ascending(builder: Builder, ids: str, capacity: str, k_blocks: str) -> str:
    """Keep the `capacity` smallest ids of int64 [.., n], ascending, as int32 padded with -1.

    Ids from `k_blocks` (0-D) on are padding; `capacity` is 1-D with one element.
    """
    order = {"axis": -1, "largest": 0, "sorted": 1}
    ids = builder.node("TopK", [ids, capacity], order, outputs=2)[0]
    real = builder.op("Less", ids, k_blocks)
    padded = builder.op("Where", real, ids, builder.constant(-1, np.int64))
    return builder.cast(padded, TensorProto.INT32)


def emit_selection_from_grid(builder: Builder, mask_name: str) -> Selection:
    """Write the selection of a bool tensor [.., Nq, Nk] of at most four dimensions.

    C is the largest count of any row. A row that keeps nothing counts -1: every block.
    """
    mask = builder.op("Expand", mask_name, builder.ints(1, 1, 1, 1))
    kept = builder.reduce("ReduceSum", builder.cast(mask, TensorProto.INT64), [3], keepdims=False)
    most = builder.reduce("ReduceMax", kept, [0, 1, 2], keepdims=False)
    capacity = builder.op("Max", builder.unsqueeze(most, [0]), builder.ints(1))
    k_blocks = builder.dim(mask, 3)
    ids = builder.op("Where", mask, builder.arange(k_blocks), k_blocks)
    empty = builder.op("Less", kept, builder.constant(1, np.int64))
    count = builder.op("Where", empty, builder.constant(-1, np.int64), kept)
    return Selection(
        emit_ascending(builder, ids, capacity, k_blocks), builder.cast(count, TensorProto.INT32)
    )


def emit_selection(
    pattern: Pattern,
    builder: Builder,
    inputs: SiteInputs,
    *,
    q_length: int | None,
    k_length: int | None,
    max_length: int | None,
    offset: int | str = 0,
    heads: int | None = None,
) -> Selection:
    """Write the nodes or constants that select blocks at one site, for any kind of pattern.

    Lengths are None where the graph does not fix them; `max_length` is then the longest a grid
    pattern is asked for. `offset` is query 0's position, a number or a 0-D int64 tensor. `heads`
    is the number of query heads, if known. Causally forbidden blocks are never listed.
    """
    if isinstance(pattern, DynamicPattern):
        return pattern.emit(builder, inputs)
    if isinstance(pattern, RulePattern):
        return _emit_rule(pattern, builder, inputs, offset)
    grid = _largest_grid(pattern, inputs, q_length, k_length, max_length, offset, heads)
    mask = _head_grid(pattern, grid, heads)
    if q_length is not None and k_length is not None:
        indices, count = selection_from_grid(mask & grid.permitted())
        return Selection(builder.constant(indices, np.int32), builder.constant(count, np.int32))
    return _emit_sliced(builder, inputs, grid, mask)


def _runtime_blocks(
    pattern: RulePattern | Grid, builder: Builder, inputs: SiteInputs, offset: int | str
) -> Blocks:
    q_length, k_length = builder.dim(inputs.query, 2), builder.dim(inputs.key, 2)
    return graph_blocks(builder, q_length, k_length, pattern.q_block, pattern.k_block, offset)


def _emit_permitted(
    builder: Builder, inputs: SiteInputs, blocks: Blocks, mask: Value, offset: int | str
) -> str:
    if inputs.causal:
        shift = GraphValue(builder, offset) if isinstance(offset, str) else offset
        mask = mask & permitted(blocks, shift)
    return cast(GraphValue, mask).name


def _emit_rule(
    pattern: RulePattern, builder: Builder, inputs: SiteInputs, offset: int | str
) -> Selection:
    blocks = _runtime_blocks(pattern, builder, inputs, offset)
    mask = _graph_mask(pattern, blocks)
    if not inputs.causal:
        # A rule may answer one row or one column: meeting every block gives it the grid's shape.
        mask = mask & ((blocks.q_first <= blocks.q_last) | (blocks.k_first <= blocks.k_last))
    return emit_selection_from_grid(builder, _emit_permitted(builder, inputs, blocks, mask, offset))


def _graph_mask(pattern: RulePattern, blocks: Blocks) -> Value:
    name = pattern_name(pattern)
    try:
        mask = pattern.rule(blocks)
    except SparsifyError as error:
        raise SparsifyError(f"pattern {name}: {error}") from error
    if not isinstance(mask, GraphValue):
        raise SparsifyError(
            f"pattern {name} answered a {type(mask).__name__}, not a mask of blocks"
        )
    return mask


def _largest_grid(
    pattern: GridPattern,
    inputs: SiteInputs,
    q_length: int | None,
    k_length: int | None,
    max_length: int | None,
    offset: int | str,
    heads: int | None,
) -> Grid:
    name = pattern_name(pattern)
    if isinstance(offset, str):
        raise SparsifyError(
            f"pattern {name} fixes a grid, but the position of this site's first query is only "
            "known at run time; use a rule or a dynamic pattern here"
        )
    q_len, k_len = q_length or max_length, k_length or max_length
    if q_len is None or k_len is None:
        raise SparsifyError(
            f"pattern {name} fixes a grid, but the model leaves its length open; "
            "name the longest input with --max-length"
        )
    # Without a known number of heads, two key heads stand in: _head_grid refuses what differs.
    heads = heads or 2 * inputs.group
    kv_heads = heads // inputs.group
    block = (pattern.q_block, pattern.k_block)
    return Grid(heads, kv_heads, q_len, k_len, *block, offset, inputs.causal)


def _head_grid(pattern: GridPattern, grid: Grid, heads: int | None) -> Bools:
    mask = grid_of(pattern, grid)
    if heads is None and mask.shape[0] != 1:
        raise SparsifyError(
            f"pattern {pattern_name(pattern)} gives every head a grid of its own, but the model "
            "does not fix this site's number of heads"
        )
    return mask


def _emit_sliced(builder: Builder, inputs: SiteInputs, grid: Grid, mask: Bools) -> Selection:
    """Cut the grid of the longest input at run time; longer inputs keep every block."""
    q_length, k_length = builder.dim(inputs.query, 2), builder.dim(inputs.key, 2)
    cut = builder.constant(mask, np.bool_)
    for axis, (length, block) in enumerate(
        [(q_length, grid.q_block), (k_length, grid.k_block)], start=1
    ):
        count = builder.ceil_div(length, builder.constant(block, np.int64))
        last = builder.constant(mask.shape[axis] - 1, np.int64)
        # Clamped, so that the shapes stay right for inputs that are too long.
        cut = builder.gather(cut, builder.op("Min", builder.arange(count), last), axis)
    blocks = _runtime_blocks(grid, builder, inputs, grid.offset)
    cut = _emit_permitted(builder, inputs, blocks, GraphValue(builder, cut), grid.offset)
    selection = emit_selection_from_grid(builder, cut)
    too_long = builder.op(
        "Or",
        builder.op("Greater", q_length, builder.constant(grid.q_len, np.int64)),
        builder.op("Greater", k_length, builder.constant(grid.k_len, np.int64)),
    )
    every = builder.constant(-1, np.int32)
    count = builder.op("Where", too_long, every, selection.block_count)
    return Selection(selection.block_indices, count)
