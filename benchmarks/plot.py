"""Draws speed-up against density as SVG: one line per number of tokens, both axes logarithmic."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.measured import Measured

Point = tuple[float, float]
"""Density and speed-up."""
Lines = Mapping[str, Sequence[Point]]

TITLE = "Speed-up over the dense fused attention"

_WIDTH, _HEIGHT = 560, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 480, 44, 324
"""Edges of the plotting area."""
_DENSITIES = (1.0, 0.5, 0.2, 0.1, 0.05)
_SPEED_UPS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
_COLORS = ("#1f5fa8", "#c8553d", "#3a7d44", "#8a5aa8", "#b8860b", "#4a6670")
_GREY = "#888888"


def write_plot(path: Path, rows: Iterable[Measured]) -> None:
    """Draw the rows of the group `sparse` that have D 64 and blocks of 64 keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(lines_of(rows)), encoding="utf-8")


def lines_of(rows: Iterable[Measured]) -> Lines:
    """Speed-up by density for each number of tokens, medians over the pairs."""
    lines: dict[str, list[Point]] = {}
    for row in rows:
        problem = row.case.problem
        if problem.blocks is not None and (problem.dim, problem.blocks.k_block) == (64, 64):
            points = lines.setdefault(f"S {problem.keys}", [])
            points.append((row.density, 1 / row.found.median))
    return lines


def draw(lines: Lines) -> str:
    """Draw the lines and, dashed, the speed-up of one that takes its density of the time."""
    body = "\n".join([*_grid(), *_ideal(), *_curves(lines)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img" font-family="sans-serif">\n'
        f"<title>{TITLE}</title>\n"
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n'
        f"{_text(_LEFT, 26, TITLE, size=15)}\n{body}\n</svg>\n"
    )


def _x(density: float) -> float:
    """Dense on the left, ever fewer scores to the right."""
    return _LEFT + (_RIGHT - _LEFT) * _share(density, _DENSITIES)


def _y(speed_up: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * _share(speed_up, _SPEED_UPS)


def _share(value: float, marks: Sequence[float]) -> float:
    """Where a value stands on a logarithmic axis, from 0 at its first mark to 1 at its last."""
    return math.log(value / marks[0]) / math.log(marks[-1] / marks[0])


def _grid() -> Iterator[str]:
    for density in _DENSITIES:
        x = _x(density)
        yield _path([(x, _TOP), (x, _BOTTOM)], "#e0e4e8")
        yield _text(x, _BOTTOM + 18, f"{density:.0%}", anchor="middle")
    for speed_up in _SPEED_UPS:
        y = _y(speed_up)
        yield _path([(_LEFT, y), (_RIGHT, y)], "#e0e4e8")
        yield _text(_LEFT - 8, y + 4, f"{speed_up:g}x", anchor="end")
    middle = (_LEFT + _RIGHT) / 2
    yield _text(middle, _BOTTOM + 40, "share of the scores that is computed", anchor="middle")


def _ideal() -> Iterator[str]:
    last = _DENSITIES[-1]
    ends = [(_x(1.0), _y(1.0)), (_x(last), _y(1 / last))]
    yield _path(ends, _GREY, 'stroke-dasharray="5 4"')
    yield _text(ends[1][0] + 8, ends[1][1] + 4, "1 / density", color=_GREY)


def _curves(lines: Lines) -> Iterator[str]:
    """Yield the lines; their names stand beside the plot, in the order of the lines."""
    for index, (name, points) in enumerate(lines.items()):
        color = _COLORS[index % len(_COLORS)]
        places = [(_x(density), _y(speed_up)) for density, speed_up in sorted(points)]
        yield _path(places, color, 'stroke-width="2"')
        for x, y in places:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'
        yield _text(_RIGHT + 8, _BOTTOM - 16 * (len(lines) - index), name, color=color)


def _path(places: Sequence[Point], color: str, more: str = "") -> str:
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return f'<path d="M{steps}" stroke="{color}" fill="none" {more}/>'


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", color: str = "#222222"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}"'
    return f"<text {place}>{text}</text>"
