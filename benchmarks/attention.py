"""The operator alone against ONNX Runtime: `python -m benchmarks.attention [--quick]`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.progress import track

from benchmarks import operators
from benchmarks.cases import Case, long_cases, short_cases
from benchmarks.document import Table, console, duration, plural, show, write_section
from benchmarks.paired import Call, bound, interleave, ratio, session
from sparsify.timing import Timing

NOTE = """
Time of the operator relative to ONNX Runtime's fused `com.microsoft.MultiHeadAttention` (dense, on
the same Q, K and V) and to the MatMul-Softmax-MatMul that exporters write. All run in one process
with as many threads, none of which spin, in turn; a ratio is the median over the pairs, in brackets
the smallest and the largest. fp32, batch 1, 8 heads.

The fused rival takes `[1, S, H*D]` and changes the layout inside; ours takes `[1, H, S, D]`. In the
column "same layout", ours stands between the Transposes that give it the rival's inputs and output.
Causal rows have both mask causally; their density is what the mask permits.
In sparse rows every head and block of 64 queries has another random list of key blocks; the block
that holds the first of the queries is always in it.
"""

COLUMNS = (
    "S",
    "D",
    "computed",
    "density",
    "ours",
    "fused",
    "ours / fused",
    "same layout / fused",
    "ours / unfused",
    "target",
    "verdict",
)

AGREE = 1e-5
"""Relative L2 difference from the rival above which a comparison of times means nothing."""


@dataclass(frozen=True)
class Measured:
    """What came out for one case: the times, and the share of the blocks that was computed."""

    case: Case
    times: Mapping[str, Timing]
    density: float

    def ratio(self, mine: str, base: str) -> str:
        """One ratio as text, "-" where it was not measured."""
        if mine in self.times and base in self.times:
            return str(ratio(self.times[mine], self.times[base]))
        return "-"

    @property
    def met(self) -> bool:
        """Whether the case is within its target."""
        ours, fused = self.times["ours"], self.times["fused"]
        return self.case.met(ratio(ours, fused).median, ours.median - fused.median)

    def row(self) -> tuple[str, ...]:
        """The case as a row of the table."""
        return (
            str(self.case.shape.length),
            str(self.case.shape.dim),
            self.case.what,
            f"{self.density:.4f}",
            duration(self.times["ours"].median),
            duration(self.times["fused"].median),
            self.ratio("ours", "fused"),
            self.ratio("same layout", "fused"),
            self.ratio("ours", "unfused"),
            self.case.target,
            "met" if self.met else "MISSED",
        )


def measure(case: Case, pairs: int, threads: int) -> Measured:
    """Time one case and its rivals in turn."""
    shape, feeds = case.shape, operators.qkv(case.shape)
    flat, density = operators.tokens_first(feeds), case.permitted
    own = session(operators.sparse_attention(shape, case.blocks, case.causal), threads=threads)
    fused = session(operators.multi_head_attention(shape, case.causal), threads=threads)
    calls = {"fused": bound(fused, flat)}
    if case.blocks is None:
        _check_agreement(own.run(None, feeds)[0], fused.run(None, flat)[0])
        calls["ours"] = bound(own, feeds)
    else:
        chosen = operators.selection(shape, case.blocks)
        density = operators.actual_density(shape, case.blocks, chosen)
        calls["ours"] = bound(own, {**feeds, **chosen})
    if case.blocks is None and not case.causal:
        calls |= _dense_only(case, feeds, flat, threads)
    return Measured(case, interleave(calls, pairs), density)


def _dense_only(
    case: Case, feeds: operators.Arrays, flat: operators.Arrays, threads: int
) -> dict[str, Call]:
    """Ours in the rival's layout, and the rival that is not fused."""
    between = session(operators.sparse_attention_tokens_first(case.shape), threads=threads)
    plain = session(operators.unfused(case.shape), threads=threads)
    return {"same layout": bound(between, flat), "unfused": bound(plain, feeds)}


def _check_agreement(mine: operators.Floats, rivals: operators.Floats) -> None:
    flat = operators.tokens_first({"Y": mine})["Y"]
    error = np.linalg.norm(flat - rivals) / np.linalg.norm(rivals)
    if error > AGREE:
        raise SystemExit(f"ours and the rival disagree: relative L2 {error:.1e}")


def table(title: str, rows: Iterable[Measured]) -> Table:
    """All rows with their verdicts."""
    return Table(title, COLUMNS, tuple(row.row() for row in rows))


@click.command()
@click.option("--quick", is_flag=True, help="Leave out the longest sequence.")
@click.option("--threads", default=1, type=click.IntRange(min=1), help="Threads of each session.")
@click.option("--pairs", default=7, type=click.IntRange(min=7), help="Pairs per row.")
@click.option("--out", type=click.Path(path_type=Path), help="Markdown file to write into.")
def main(quick: bool, threads: int, pairs: int, out: Path | None) -> None:
    """Time attention alone against ONNX Runtime's own."""
    cases: Sequence[Case] = [*short_cases(), *long_cases(quick)]
    rows = [
        measure(case, pairs * (3 if case.short else 1), threads)
        for case in track(cases, "measuring", console=console, transient=True)
    ]
    tables = [
        table("Dense and sparse", [row for row in rows if not row.case.short]),
        table("Short sequences, dense", [row for row in rows if row.case.short]),
    ]
    for each in tables:
        show(each)
    missed = sum(not row.met for row in rows)
    console.print(f"{len(rows) - missed} of {len(rows)} targets met, {plural(threads, 'thread')}")
    if out is not None:
        title = f"The operator alone, {plural(threads, 'thread')}"
        write_section(out, f"attention {threads}", title, tables, NOTE)


if __name__ == "__main__":
    main()
