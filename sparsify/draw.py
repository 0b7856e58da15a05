"""Draws grids: as text in `#` and `.`, and as SVG; and finds the grid to draw for any pattern."""

from collections.abc import Iterator
from html import escape

import numpy as np

from sparsify.example import example_grid, example_selection
from sparsify.grids import Bools, grid_of
from sparsify.pattern import DynamicPattern, Grid, Pattern

__all__ = ["EXAMPLE_NOTE", "draw_svg", "draw_text", "example_grid", "pattern_grid"]

EXAMPLE_NOTE = "an example on random clustered data; the selection depends on the input"
"""What has to stand under the drawing of a dynamic pattern."""

_PANEL = 240
_GAP = 24
_TITLE = 36
_CAPTION = 22


def pattern_grid(pattern: Pattern, grid: Grid) -> Bools:
    """Find the blocks that a pattern of any kind computes: [heads or 1, q_blocks, k_blocks].

    For a dynamic pattern this is an example, to be labelled with `EXAMPLE_NOTE`.
    """
    if isinstance(pattern, DynamicPattern):
        return example_selection(pattern, grid)
    return np.asarray(grid_of(pattern, grid) & grid.permitted())


def draw_text(mask: Bools, width: int = 64) -> str:
    """Draw one grid [q_blocks, k_blocks], at most `width` characters wide and high.

    In a reduced drawing `#` is a cell with at least one kept block.
    """
    rows, columns = mask.shape
    step, tall = -(-columns // width), -(-rows // width)
    return "".join(
        "".join(
            "#" if mask[top : top + tall, left : left + step].any() else "."
            for left in range(0, columns, step)
        )
        + "\n"
        for top in range(0, rows, tall)
    )


def draw_svg(masks: Bools, title: str) -> str:
    """Draw grids [heads, q_blocks, k_blocks] side by side as one self-contained SVG."""
    heads = len(masks)
    width = _GAP + heads * (_PANEL + _GAP)
    height = _TITLE + _PANEL + _CAPTION + _GAP
    panels = "".join(
        _panel(mask, _GAP + head * (_PANEL + _GAP), f"head {head}" if heads > 1 else "")
        for head, mask in enumerate(masks)
    )
    text = escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" font-family="sans-serif">\n'
        f"<title>{text}</title>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="{_GAP}" y="24" font-size="15" fill="#222222">{text}</text>\n'
        f"{panels}</svg>\n"
    )


def _panel(mask: Bools, x: int, label: str) -> str:
    rows, columns = mask.shape
    scale = f"scale({_PANEL / columns:.6g} {_PANEL / rows:.6g})"
    path = "".join(f"M{left} {row}h{run}v1h-{run}z" for row, left, run in _runs(mask))
    caption = f"{label} keeps {mask.mean():.1%}".strip()
    return (
        f'<g transform="translate({x} {_TITLE})">\n'
        f'<rect width="{_PANEL}" height="{_PANEL}" fill="#eef1f4"/>\n'
        f'<path transform="{scale}" d="{path}" fill="#1f5fa8"/>\n'
        f'<text y="{_PANEL + 17}" font-size="12" fill="#444444">{escape(caption)}</text>\n'
        "</g>\n"
    )


def _runs(mask: Bools) -> Iterator[tuple[int, int, int]]:
    """Yield row, first column and length of every stretch of kept blocks."""
    for row, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(line, prepend=False, append=False))
        for left, right in edges.reshape(-1, 2):
            yield row, int(left), int(right - left)
