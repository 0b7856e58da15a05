"""Checks that a pattern keeps the contract of `sparsify.pattern`, whatever kind it is."""

import itertools
from dataclasses import replace

import numpy as np
import onnx

from sparsify.example import Setting, clustered, run_selection, selection_model
from sparsify.grids import Bools, Int32s, grid_from_selection, grid_of, pattern_name
from sparsify.pattern import DynamicPattern, Grid, GridPattern, Pattern, RulePattern

_OPSETS = (12, 17, onnx.defs.onnx_opset_version())
_LENGTHS = (1, 63, 64, 65, 200, 1024)
_RECTANGLES = ((64, 200), (200, 64), (1, 1024), (65, 1))


def check_pattern(pattern: Pattern) -> None:
    """Run every check that applies to the pattern's kind.

    Raises:
        AssertionError: the pattern breaks the contract; the sentence says where.
        SparsifyError: the pattern cannot be asked at all, or answers a grid that is no grid.

    """
    _check_fields(pattern)
    if isinstance(pattern, DynamicPattern):
        _check_dynamic(pattern)
        return
    for grid in _grids(pattern):
        grid_of(pattern, grid)
    if isinstance(pattern, RulePattern):
        _check_rule(pattern)
    else:
        _check_grid(pattern)


def _require(condition: bool, pattern: Pattern, sentence: str) -> None:
    if not condition:
        raise AssertionError(f"pattern {pattern_name(pattern)} {sentence}")


def _check_fields(pattern: Pattern) -> None:
    for field in ("q_block", "k_block"):
        size = getattr(pattern, field, None)
        good = isinstance(size, int) and not isinstance(size, bool) and size > 0
        _require(good, pattern, f"has {field}={size!r}, not a positive int")
    kinds = {"rule": RulePattern, "keep": GridPattern, "emit": DynamicPattern}
    found = [name for name, kind in kinds.items() if isinstance(pattern, kind)]
    _require(len(found) == 1, pattern, f"has the methods {found}, not one of rule, keep, emit")


def _grids(pattern: Pattern) -> list[Grid]:
    blocks = (pattern.q_block, pattern.k_block)
    squares = [
        Grid(4, 2, n, n, *blocks, causal=causal) for n in _LENGTHS for causal in (False, True)
    ]
    rectangles = [Grid(4, 2, q, k, *blocks) for q, k in _RECTANGLES]
    cached = [Grid(4, 2, q, 200, *blocks, 200 - q, True) for q in (1, 65)]
    return [*squares, *rectangles, *cached]


# Static patterns ----------------------------------------------------------------------------------


def _check_rule(pattern: RulePattern) -> None:
    grids = _grids(pattern)
    for opset, causal, offset in itertools.product(_OPSETS, (False, True), (0, 199)):
        setting = Setting(opset, group=2, causal=causal, offset=offset)
        fitting = [g for g in grids if (g.causal, g.offset) == (causal, offset)]
        _check_graph(pattern, setting, fitting)


def _check_grid(pattern: GridPattern) -> None:
    """Hold constants and the sliced grid of the longest length against `keep`."""
    for opset, causal in itertools.product(_OPSETS, (False, True)):
        setting = Setting(opset, group=2, causal=causal, heads=4)
        for length in (65, 200):
            grid = Grid(4, 2, length, length, pattern.q_block, pattern.k_block, causal=causal)
            fixed = replace(setting, q_length=length, k_length=length)
            _check_graph(pattern, fixed, [grid])
            _check_sliced(pattern, replace(setting, max_length=512), grid)


def _check_graph(pattern: RulePattern | GridPattern, setting: Setting, grids: list[Grid]) -> None:
    if not grids:
        return
    model = selection_model(pattern, setting)
    for grid in grids:
        indices, count = run_selection(model, *clustered(grid))
        kept = _decoded(pattern, grid, indices, count)
        wanted = grid_of(pattern, grid) & grid.permitted()
        same = bool((kept == wanted).all())
        _require(same, pattern, f"selects other blocks in a graph than as an array: {grid}")


def _check_sliced(pattern: GridPattern, setting: Setting, grid: Grid) -> None:
    indices, count = run_selection(selection_model(pattern, setting), *clustered(grid))
    _decoded(pattern, grid, indices, count)


# Dynamic patterns ---------------------------------------------------------------------------------


def _check_dynamic(pattern: DynamicPattern) -> None:
    shapes = ((1, 1), (64, 64), (65, 65), (200, 200), (65, 130))
    places = ((False, 0), (True, 0), (True, 135))
    for opset, (causal, offset), group in itertools.product(_OPSETS, places, (1, 2)):
        setting = Setting(opset, group=group, causal=causal, offset=offset)
        model = selection_model(pattern, setting)
        for batch, (q_len, k_len) in itertools.product((1, 2), shapes):
            blocks = (pattern.q_block, pattern.k_block)
            grid = Grid(4, 4 // group, q_len, k_len, *blocks, offset, causal)
            indices, count = run_selection(model, *clustered(grid, batch))
            kept = _decoded(pattern, grid, indices, count, batch)
            seen = (kept & grid.permitted()).any(axis=-1)
            _require(bool(seen.all()), pattern, f"keeps no permitted block in a row of {grid}")


# Any selection ------------------------------------------------------------------------------------


def _decoded(pattern: Pattern, grid: Grid, indices: Int32s, count: Int32s, batch: int = 1) -> Bools:
    """Check the form of a selection, and return the grid it means."""
    where = f"in {grid}"
    types = f"{indices.dtype} and {count.dtype}"
    _require(types == "int32 and int32", pattern, f"selects with {types}, not int32 {where}")
    capacity = indices.shape[-1] if indices.ndim else 0
    leading = [(b, h, grid.q_blocks) for b in {1, batch} for h in {1, grid.heads}]
    fits = indices.ndim == 4 and indices.shape[:3] in leading and count.shape in leading
    shapes = f"block_indices {list(indices.shape)} and block_count {list(count.shape)}"
    _require(fits and capacity > 0, pattern, f"selects with {shapes} {where}")
    listed = np.broadcast_to(count[..., None], (*_joint(indices, count), 1))
    ids = np.broadcast_to(indices, (*listed.shape[:3], capacity))
    in_range = (listed >= -1) & (listed != 0) & (listed <= min(capacity, grid.k_blocks))
    _require(bool(in_range.all()), pattern, f"counts 0 blocks, or more than it lists {where}")
    valid = (np.arange(capacity) < listed) & (listed >= 0)
    inside = ((ids >= 0) & (ids < grid.k_blocks)) | ~valid
    _require(bool(inside.all()), pattern, f"lists a block that does not exist {where}")
    rising = (np.diff(ids, axis=-1) > 0) | ~valid[..., 1:]
    _require(bool(rising.all()), pattern, f"lists blocks that do not ascend {where}")
    padded = (ids == -1) | valid | (listed < 0)
    _require(bool(padded.all()), pattern, f"does not pad its list with -1 {where}")
    return grid_from_selection(ids, listed[..., 0], grid.k_blocks)


def _joint(indices: Int32s, count: Int32s) -> tuple[int, ...]:
    return np.broadcast_shapes(indices.shape[:3], count.shape)
