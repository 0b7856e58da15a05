"""The demo's picture: the photo, and what the model says about it before and after."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from samples.vit.model import Floats


@dataclass(frozen=True)
class Panel:
    """One heatmap, what made it, and a line about its speed and error."""

    title: str
    note: str
    heatmap: Floats


def write_picture(path: Path, image: Floats, panels: Sequence[Panel], caption: str) -> None:
    """Draw the photo and all heatmaps in one row, on one colour scale, as PNG."""
    matplotlib.use("agg")
    figure = Figure(figsize=(4 * (len(panels) + 1) + 0.6, 5), dpi=120, layout="constrained")
    axes = figure.subplots(1, len(panels) + 1)
    axes[0].imshow(image)
    _label(axes[0], "photo", f"{image.shape[1]} x {image.shape[0]} pixels")
    for axis, panel in zip(axes[1:], panels, strict=True):
        shown = axis.imshow(panel.heatmap, cmap="magma", vmin=0, vmax=1)
        _label(axis, panel.title, panel.note)
    figure.colorbar(shown, ax=axes[-1], fraction=0.046, pad=0.03, label="importance")
    figure.suptitle(caption, fontsize=15)
    figure.savefig(path)


def _label(axis: Axes, title: str, note: str) -> None:
    axis.set_title(f"{title}\n{note}", fontsize=12)
    axis.set_xticks([])
    axis.set_yticks([])
