"""Draws costs: time and energy of a model's attentions against length, one colour per device."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sparsify.costs import CostRow, Spent
from sparsify.errors import SparsifyError

SUFFIXES = (".svg", ".png")

_STYLES = (":", "--", "-.")
"""Lines of densities, the smallest first; computing everything is a whole line."""


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before any work is done.

    Raises:
        SparsifyError: another file type, or matplotlib is missing.
    """
    if path.suffix not in SUFFIXES:
        raise SparsifyError(f"{path}: draws {' or '.join(SUFFIXES)}; choose one of them")
    if importlib.util.find_spec("matplotlib") is None:
        raise SparsifyError(f"{path}: needs matplotlib; pip install 'onnx-sparsify[plot]'")


def draw_costs(rows: Sequence[CostRow], path: Path) -> None:
    """Draw time and energy side by side, with a mark where each density begins to pay.

    Raises:
        SparsifyError: another file type, matplotlib is missing, or the path cannot be written.
    """
    check_picture(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    time, energy = figure.subplots(1, 2)
    _panel(time, rows, lambda spent: spent.seconds, "seconds")
    _panel(energy, rows, lambda spent: spent.joules, "joules (estimate)")
    handles, labels = time.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    figure.suptitle(
        "All attentions of one run; a ring: from here on selecting takes less", x=0.02, ha="left"
    )
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})
    except OSError as error:
        raise SparsifyError(f"{path}: cannot be written ({error.strerror})") from error


def _panel(axes: Any, rows: Sequence[CostRow], value: Callable[[Spent], float], label: str) -> None:
    for index, device in enumerate(dict.fromkeys(row.device for row in rows)):
        own = [row for row in rows if row.device == device]
        lengths, colour = [row.length for row in own], f"C{index}"
        dense = [value(row.dense) for row in own]
        name_of = device.replace("$", r"\$")  # a device's name is no formula
        axes.plot(lengths, dense, color=colour, label=name_of)
        for style, (name, line) in zip(_STYLES, _lines(own, value), strict=False):
            axes.plot(lengths, line, style, color=colour, label=f"{name_of}, {name}")
            start = next((i for i in range(len(own)) if line[i] < dense[i]), None)
            if start is not None:
                axes.plot(lengths[start], line[start], "o", color=colour, fillstyle="none")
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
    ticks = sorted({row.length for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _lines(
    rows: Sequence[CostRow], value: Callable[[Spent], float]
) -> Iterator[tuple[str, list[float]]]:
    """The smallest densities, as many as there are styles: their name and their values."""
    order = sorted(range(len(rows[0].densities)), key=lambda i: rows[0].densities[i])
    for index in order[: len(_STYLES)]:
        share = rows[0].densities[index]
        yield f"{share:.3g} of the keys", [value(row.sparse[index]) for row in rows]
