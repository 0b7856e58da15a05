"""The operator alone against others: `python -m benchmarks.attention [--only dense,...]`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.progress import track

from benchmarks import memory, peak, selectors
from benchmarks.cases import LONG, Case
from benchmarks.document import Table, console, plural, show, tally, write_section
from benchmarks.groups import GROUPS
from benchmarks.measured import Measured, measure
from benchmarks.plot import write_plot
from benchmarks.record import write_json

NOTE = """Sessions in one process, whose threads do not spin, run in turn; a ratio is the median
over the pairs, in brackets the smallest and the largest. "Fused" is ONNX Runtime's
`com.microsoft.MultiHeadAttention`, "unfused" the MatMul-Softmax-MatMul that exporters write; both
compute every score. Where nothing else is said: float32, batch 1, 8 heads."""

NAMES = (*GROUPS, "selectors", "memory", "peak")
OWN_THREADS = ("threads", "peak")
"""Groups that do not heed the number of threads asked for."""

_FILE = click.Path(dir_okay=False, path_type=Path)


def _names(context: click.Context, option: click.Parameter, value: str) -> Sequence[str]:
    """Read the names of groups, separated by commas."""
    names = [name.strip() for name in value.split(",")]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: must be of {', '.join(NAMES)}")
    return names


def _kept(case: Case, quick: bool) -> bool:
    return not quick or case.problem.queries < LONG[-1]


@dataclass(frozen=True)
class Section:
    """What came out for one group; those made by a module of their own have no `rows`."""

    title: str
    table: Table
    note: str
    rows: tuple[Measured, ...] = ()


def measured(name: str, quick: bool, threads: int, pairs: int) -> Section:
    """Measure one group."""
    if name == "selectors":
        return Section(selectors.TITLE, selectors.table(pairs, threads), selectors.NOTE)
    if name == "memory":
        return Section(memory.TITLE, memory.table(threads), memory.NOTE)
    if name == "peak":
        return Section(peak.TITLE, peak.table(pairs), peak.NOTE)
    group = GROUPS[name]
    cases = [case for case in group.cases() if _kept(case, quick)]
    rows = [
        measure(case, pairs, threads)
        for case in track(cases, name, console=console, transient=True)
    ]
    return Section(group.title, group.table(rows), f"{group.note}\n\n{NOTE}", tuple(rows))


@click.command()
@click.option(
    "--only",
    default=",".join(NAMES),
    callback=_names,
    help=f"Some of the groups {', '.join(NAMES)}.",
)
@click.option("--quick", is_flag=True, help="Leave out 8192 queries and more.")
@click.option("--threads", default=1, type=click.IntRange(min=1), help="Threads of each session.")
@click.option("--pairs", default=7, type=click.IntRange(min=7), help="Pairs per row.")
@click.option("--out", type=_FILE, help="Markdown file to write into.")
@click.option("--json", "record_in", type=_FILE, help="File for all samples, in seconds, as JSON.")
@click.option(
    "--plot", "plot_in", type=_FILE, help="SVG file for speed-up by density; needs group sparse."
)
def main(
    only: Sequence[str],
    quick: bool,
    threads: int,
    pairs: int,
    out: Path | None,
    record_in: Path | None,
    plot_in: Path | None,
) -> None:
    """Time attention alone against ONNX Runtime's own and that of other libraries."""
    if plot_in is not None and "sparse" not in only:
        raise click.UsageError("--plot draws the group sparse: name it in --only")
    sections: dict[str, Section] = {}
    for name in only:
        if name == "memory" and quick:
            continue
        found = sections[name] = measured(name, quick, threads, pairs)
        suffix = "" if name in OWN_THREADS else f", {plural(threads, 'thread')}"
        heading = f"The operator alone: {found.title}{suffix}"
        console.print(heading)
        show(found.table)
        if out is not None:
            write_section(out, f"attention {name}{suffix}", heading, [found.table], found.note)
        if record_in is not None:
            _record(record_in, threads, sections)
    if plot_in is not None:
        write_plot(plot_in, sections["sparse"].rows)
    tallies = [tally(found.table) for found in sections.values()]
    met, total = sum(met for met, _ in tallies), sum(total for _, total in tallies)
    if total:
        console.print(f"{met} of {total} targets met, {plural(threads, 'thread')}")


def _record(path: Path, threads: int, sections: Mapping[str, Section]) -> None:
    """Write all that was measured so far: a run that ends early leaves what it has."""
    rows = {name: found.rows for name, found in sections.items() if found.rows}
    tables = {name: found.table for name, found in sections.items() if not found.rows}
    write_json(path, threads, rows, tables)


if __name__ == "__main__":
    main()
