"""The operator alone against ONNX Runtime: `python -m benchmarks.attention [--only dense,...]`."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.progress import track

from benchmarks import memory, peak
from benchmarks.cases import LONG, Case
from benchmarks.document import Table, console, plural, show, tally, write_section
from benchmarks.groups import GROUPS
from benchmarks.measured import measure

NOTE = """Sessions in one process, whose threads do not spin, run in turn; a ratio is the median
over the pairs, in brackets the smallest and the largest. "Fused" is ONNX Runtime's
`com.microsoft.MultiHeadAttention`, "unfused" the MatMul-Softmax-MatMul that exporters write; both
compute every score. Where nothing else is said: float32, batch 1, 8 heads."""

NAMES = (*GROUPS, "memory", "peak")
OWN_THREADS = ("threads", "peak")
"""Groups that do not heed the number of threads asked for."""


def _names(context: click.Context, option: click.Parameter, value: str) -> Sequence[str]:
    """Read the names of groups, separated by commas."""
    names = [name.strip() for name in value.split(",")]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: must be of {', '.join(NAMES)}")
    return names


def _kept(case: Case, quick: bool) -> bool:
    return not quick or case.problem.queries < LONG[-1]


def measured(name: str, quick: bool, threads: int, pairs: int) -> tuple[str, Table, str]:
    """One group's title, table and note."""
    if name == "memory":
        return memory.TITLE, memory.table(threads), memory.NOTE
    if name == "peak":
        return peak.TITLE, peak.table(pairs), peak.NOTE
    group = GROUPS[name]
    cases = [case for case in group.cases() if _kept(case, quick)]
    rows = [
        measure(case, pairs, threads)
        for case in track(cases, name, console=console, transient=True)
    ]
    return group.title, group.table(rows), f"{group.note}\n\n{NOTE}"


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
@click.option("--out", type=click.Path(path_type=Path), help="Markdown file to write into.")
def main(only: Sequence[str], quick: bool, threads: int, pairs: int, out: Path | None) -> None:
    """Time attention alone against ONNX Runtime's own."""
    met = total = 0
    for name in only:
        if name == "memory" and quick:
            continue
        title, table, note = measured(name, quick, threads, pairs)
        suffix = "" if name in OWN_THREADS else f", {plural(threads, 'thread')}"
        heading = f"The operator alone: {title}{suffix}"
        console.print(heading)
        show(table)
        met, total = met + tally(table)[0], total + tally(table)[1]
        if out is not None:
            write_section(out, f"attention {name}{suffix}", heading, [table], note)
    console.print(f"{met} of {total} targets met, {plural(threads, 'thread')}")


if __name__ == "__main__":
    main()
