"""Whole trained models, before and after: `python -m benchmarks.models`."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.conversion import Conversion, convert
from benchmarks.document import Table, console, duration, plural, show, write_section
from benchmarks.inputs import Subject, subjects
from benchmarks.paired import bound, interleave, ratio, session
from sparsify.timing import Timing
from sparsify.verification import compare

NOTE = """
Every model runs on a real input (a photo; fifty news documents; a scanned line of text): as it was
published, rewritten with the library registered, and rewritten in stock ONNX Runtime, where the
operator runs through the definition that the file carries. All run in one process with as many
threads, none of which spin, in turn; a ratio is the median over the pairs, in brackets the smallest
and the largest. Errors are relative L2 of the worst output against the original's.
"""

LIMITS = {"exact, stock": 1.05, "sparse": 1 / 1.5, "sparse, stock": None}
"""The share of the original's time that is wanted at most; for exact each model has its own."""

SECONDS, PEAK = 5.0, 600e6
"""What converting the largest of the models may take: time, and bytes of memory."""


@dataclass(frozen=True)
class Measured:
    """What came out for one model: times and errors by variant, and what its conversion took."""

    subject: Subject
    times: Mapping[str, Timing]
    errors: Mapping[str, float]
    conversions: Mapping[str, Conversion]

    def rows(self) -> Iterator[tuple[str, ...]]:
        """One row for the original and for every variant."""
        base = self.times["original"]
        for name, timing in self.times.items():
            if name == "original":
                yield self.subject.name, name, duration(timing.median), "1", "1.00x", "-", "-", "-"
                continue
            found = ratio(timing, base)
            limit = self.subject.exact_limit if name == "exact" else LIMITS[name]
            yield (
                self.subject.name,
                name,
                duration(timing.median),
                str(found),
                f"{1 / found.median:.2f}x",
                f"{self.errors[name]:.1e}",
                "-" if limit is None else f"<= {limit:.3g}",
                "-" if limit is None else _verdict(found.median <= limit),
            )


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def measure(subject: Subject, folder: Path, pairs: int, threads: int) -> Measured:
    """Convert one model, then time its variants in turn."""
    files, conversions = {}, {}
    for name, options in _conversions(subject):
        files[name] = folder / f"{name}.onnx"
        conversions[name] = convert(subject.path, files[name], options)
    sessions = {"original": session(subject.path, threads=threads, library=False)}
    for name, file in files.items():
        sessions[name] = session(file, threads=threads)
        sessions[f"{name}, stock"] = session(file, threads=threads, library=False)
    errors = _errors(subject, sessions)
    calls = {name: bound(active, subject.feeds) for name, active in sessions.items()}
    return Measured(subject, interleave(calls, pairs), errors, conversions)


def _conversions(subject: Subject) -> Iterator[tuple[str, Sequence[str]]]:
    yield "exact", ("--exact",)
    if subject.sparse:
        yield "sparse", subject.sparse


def _errors(subject: Subject, sessions: Mapping[str, Any]) -> dict[str, float]:
    names = [output.name for output in sessions["original"].get_outputs()]
    outputs = {
        name: dict(zip(names, active.run(names, dict(subject.feeds)), strict=True))
        for name, active in sessions.items()
    }
    wanted = outputs.pop("original")
    return {
        name: max(error.rel_l2 for error in compare([wanted], [got]))
        for name, got in outputs.items()
    }


def speed_table(results: Sequence[Measured]) -> Table:
    """All models and variants."""
    columns = ("model", "variant", "time", "ratio", "speed-up", "error", "target", "verdict")
    return Table("Speed", columns, tuple(row for each in results for row in each.rows()))


def conversion_table(results: Sequence[Measured]) -> Table:
    """What the conversions took, without the end-to-end check."""
    columns = ("model", "variant", "time", "peak memory", "target", "verdict")
    target = f"< {SECONDS:.0f} s, < {PEAK / 1e6:.0f} MB"
    rows = [
        (
            each.subject.name,
            name,
            f"{took.seconds:.1f} s",
            f"{took.peak / 1e6:.0f} MB",
            target,
            _verdict(took.seconds < SECONDS and took.peak < PEAK),
        )
        for each in results
        for name, took in each.conversions.items()
    ]
    return Table("Conversion (`--no-verify`)", columns, tuple(rows))


@click.command()
@click.option("--threads", default=2, type=click.IntRange(min=1), help="Threads of each session.")
@click.option("--pairs", default=7, type=click.IntRange(min=1), help="Rounds per model.")
@click.option("--out", type=click.Path(path_type=Path), help="Markdown file to write into.")
def main(threads: int, pairs: int, out: Path | None) -> None:
    """Time trained models end to end, before and after."""
    results = []
    with tempfile.TemporaryDirectory() as folder, console.status("preparing") as status:
        for subject in subjects(Path(folder)):
            status.update(f"converting and timing {subject.name}")
            results.append(measure(subject, Path(folder), pairs, threads))
    tables = [speed_table(results), conversion_table(results)]
    for each in tables:
        show(each)
    options = " ".join(option for each in results for option in each.subject.sparse)
    console.print(f"sparse is {options}; {plural(threads, 'thread')}")
    if out is not None:
        note = f"{NOTE}\nThe sparse variant is `{options}`, on {plural(threads, 'thread')}."
        write_section(out, f"models {threads}", "Whole models", tables, note)


if __name__ == "__main__":
    main()
