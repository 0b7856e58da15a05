"""What `host` predicts against what is measured: `python -m benchmarks.cost_model`."""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from benchmarks import cost_grid, cost_rows, cost_whole
from benchmarks.cost_grid import Answer, Judged
from benchmarks.cost_rows import Rows
from benchmarks.cost_whole import Whole
from benchmarks.document import Table, console, duration, plural, show, verdict, write_section
from sparsify_hw.host import HOST, Host, available

GRID_NOTE = """Attentions and choices of blocks at lengths of 256 to 8192 tokens, head_dim 32, 64
and 128, densities of 5 % to 95 % in blocks of 16 and 64 keys, with and without residual, and
decoding steps of 1 and 4 queries. The machine is calibrated first, at other lengths. A time is the
median of a tenth of a second or at least five runs; each point has two rounds, one after all others
of the first, and the faster counts. An error is that of the predicted seconds, relative to the
measured."""

ANSWERS_NOTE = """At every selection of the grid: does selecting, with choosing the blocks, take
less time than computing every score? The loss is by how much the time of the told one exceeds the
other's, where the answer is wrong."""

ROWS_NOTE = """Selections of 62.5 % of the keys: every row the same; half of the rows a quarter and
half of them all keys; all rows the same but one that has all keys, with that mean to a
block of keys. A ratio is to balanced rows."""

WHOLE_NOTE = f"""A prediction is the time of everything beside our operators, measured once with
ONNX Runtime's profiler on the exact file, and the seconds that the device tells for the attentions.
The sparse file computes `{cost_whole.PATTERN}` with the residual `{cost_whole.RESIDUAL}`."""

MEDIAN, WORST, WITHIN = 0.10, 0.25, 0.15
"""Targets: median and 90th percentile of the grid's errors, and the error of a whole model."""

RIGHT, LOSS = 0.95, 0.05
"""Targets: the share of right answers at least, and the loss of a wrong one at most."""

PARTS = ("grid", "rows", "whole")


def grid_tables(found: Sequence[Judged], threads: int) -> list[Table]:
    """Errors by kind of work, and what became of the answers."""
    return [_errors(found, threads), _answers(list(cost_grid.answers(found)), threads)]


def _errors(found: Sequence[Judged], threads: int) -> Table:
    kinds = dict.fromkeys(each.point.kind for each in found)
    rows = [_error_row(kind, [e for e in found if e.point.kind == kind]) for kind in kinds]
    errors = np.abs([each.error for each in found])
    met = np.median(errors) <= MEDIAN and np.quantile(errors, 0.9) <= WORST
    target = f"median <= {MEDIAN:.0%}, 90 % within {WORST:.0%}"
    total = (*_error_row("all", found)[:-2], target, verdict(bool(met)))
    columns = (
        "work",
        "points",
        "median",
        "90 % within",
        "largest",
        "mean",
        "target",
        "verdict",
    )
    return Table(f"Errors, {plural(threads, 'thread')}", columns, (*rows, total))


def _error_row(kind: str, found: Sequence[Judged]) -> tuple[str, ...]:
    signed = np.array([each.error for each in found])
    errors = np.abs(signed)
    return (
        kind,
        str(len(found)),
        f"{np.median(errors):.1%}",
        f"{np.quantile(errors, 0.9):.1%}",
        f"{errors.max():.1%}",
        f"{signed.mean():+.1%}",
        "-",
        "-",
    )


def _answers(answers: Sequence[Answer], threads: int) -> Table:
    right = statistics.mean(each.right for each in answers)
    loss = max(each.loss for each in answers)
    columns = ("answers", "right", "select", "worst loss", "target", "verdict")
    row = (
        str(len(answers)),
        f"{right:.1%}",
        str(sum(each.told for each in answers)),
        f"{loss:.1%}",
        f">= {RIGHT:.0%} right, loss <= {LOSS:.0%}",
        verdict(right >= RIGHT and loss <= LOSS),
    )
    return Table(f"Sparse or dense? {plural(threads, 'thread')}", columns, (row,))


def rows_table(found: Sequence[Rows], threads: int) -> Table:
    """Balanced and unbalanced rows."""
    columns = (
        "heads, Sq, Sk",
        "rows",
        "measured",
        "predicted",
        "measured ratio",
        "predicted ratio",
    )
    return Table(plural(threads, "thread"), columns, tuple(_rows_cells(found)))


def _rows_cells(found: Sequence[Rows]) -> Iterator[tuple[str, ...]]:
    for each in found:
        w = each.work
        for name, measured in each.measured.items():
            yield (
                f"{w.heads}, {w.q_length}, {w.k_length}",
                name,
                duration(measured),
                duration(each.predicted[name]),
                f"{measured / each.measured['balanced']:.2f}",
                f"{each.predicted[name] / each.predicted['balanced']:.2f}",
            )


def whole_table(found: Sequence[Whole], threads: int) -> Table:
    """Whole models."""
    columns = (
        "model",
        "variant",
        "rest",
        "attentions",
        "predicted",
        "measured",
        "error",
        "target",
        "verdict",
    )
    rows = tuple(
        (
            str(each.model),
            each.variant,
            duration(each.rest),
            duration(each.attentions),
            duration(each.predicted),
            duration(each.measured),
            f"{each.error:+.1%}",
            f"within {WITHIN:.0%}",
            verdict(abs(each.error) <= WITHIN),
        )
        for each in found
    )
    return Table(plural(threads, "thread"), columns, rows)


def measured(part: str, threads: int, pairs: int) -> list[Table]:
    """The tables of one part."""
    device = Host(threads=threads)
    if part == "grid":
        return grid_tables(cost_grid.judge(list(cost_grid.points()), device, threads), threads)
    if part == "rows":
        return [rows_table(list(cost_rows.judge(device, threads)), threads)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = [
            whole
            for model in cost_whole.models(folder)
            for whole in cost_whole.judge(model, device, folder, pairs, threads)
        ]
    return [whole_table(found, threads)]


NOTES = {
    "grid": ("Predicted and measured", f"{GRID_NOTE}\n\n{ANSWERS_NOTE}"),
    "rows": ("Rows of unequal length, predicted and measured", ROWS_NOTE),
    "whole": ("Whole models, predicted and measured", WHOLE_NOTE),
}


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice(PARTS), default=PARTS, help="Some of the parts."
)
@click.option("--pairs", default=3, type=click.IntRange(min=1), help="Rounds per whole model.")
@click.option("--out", type=click.Path(path_type=Path), help="Markdown file to write into.")
def main(only: Sequence[str], pairs: int, out: Path | None) -> None:
    """Calibrate this machine, then compare its predictions with times it was not fitted to."""
    console.print(f"calibration: {HOST.calibrate()}")
    for part in only:
        heading, note = NOTES[part]
        counts = sorted({1, available()} if part != "rows" else {available()})
        tables = [table for threads in counts for table in measured(part, threads, pairs)]
        console.print(heading)
        for table in tables:
            show(table)
        if out is not None:
            write_section(out, f"cost model {part}", heading, tables, note)


if __name__ == "__main__":
    main()
