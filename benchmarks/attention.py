"""The operator alone against ONNX Runtime: `python -m benchmarks.attention [--quick]`.

Every comparison is a row of pairs, ours and then the rival at once, in one process with as many
threads. The rival takes [1, S, H*D] and changes the layout inside; ours takes [1, H, S, D]. The
column "same layout" has ours between the Transposes that give it the rival's inputs and output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from benchmarks import operators
from benchmarks.document import Table, console, show, write_section
from benchmarks.operators import Blocks, Shape
from benchmarks.paired import Call, Ratio, bound, interleave, ratio, session

HEADS = 8
LONG = (1024, 2048, 4096)
LONGEST = 8192
SHORT = (1, 8, 16, 64, 128, 197, 512)
DIMS = (64, 32, 128)
DENSITIES = (0.5, 0.2, 0.1)
K_BLOCKS = (64, 16, 1)

DENSE, CAUSAL = 0.95, 0.60
SPARSE = {0.5: 0.55, 0.2: 0.25, 0.1: 0.14}
"""The targets: the largest share of the rival's time that still counts as met."""

SHORT_RATIO, SHORT_SECONDS = 1.05, 10e-6
"""At short lengths either will do: the ratio, or the difference."""

AGREE = 1e-5


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    shape: Shape
    blocks: Blocks | None = None
    causal: bool = False

    @property
    def what(self) -> str:
        """The row's name."""
        if self.blocks is None:
            return "causal" if self.causal else "dense"
        return f"density {self.blocks.density}, k_block {self.blocks.k_block}"

    @property
    def target(self) -> float:
        """The largest ratio to the rival that is wanted."""
        if self.blocks is None:
            return CAUSAL if self.causal else DENSE
        return SPARSE[self.blocks.density]


def long_cases(quick: bool) -> Iterator[Case]:
    """Dense and causal for every head size; sparse ones for all block sizes at D 64."""
    for dim in DIMS:
        for length in LONG if quick else (*LONG, LONGEST):
            shape = Shape(HEADS, length, dim)
            yield Case(shape)
            yield Case(shape, causal=True)
            for k_block in K_BLOCKS if dim == DIMS[0] else K_BLOCKS[:1]:
                for density in DENSITIES:
                    yield Case(shape, Blocks(density, k_block))


@dataclass(frozen=True)
class Measured:
    """What came out for one case: seconds, ratios to each rival, and the share computed."""

    case: Case
    ours: float
    rival: float
    fused: Ratio
    same_layout: Ratio | None
    unfused: Ratio | None
    density: float

    @property
    def met(self) -> bool:
        """Whether the ratio to the fused rival is within the target."""
        return self.fused.median <= self.case.target

    @property
    def met_short(self) -> bool:
        """Whether the case is within the allowance for short lengths."""
        return self.fused.median <= SHORT_RATIO or self.ours - self.rival <= SHORT_SECONDS


def measure(case: Case, pairs: int, threads: int) -> Measured:
    """Time one case against its rivals."""
    calls, density = _calls(case, threads)
    times = interleave(calls, pairs)
    ratios = {
        name: ratio(times["ours"], times[name]) for name in ("fused", "unfused") if name in times
    }
    same = ratio(times["same layout"], times["fused"]) if "same layout" in times else None
    return Measured(
        case,
        times["ours"].median,
        times["fused"].median,
        ratios["fused"],
        same,
        ratios.get("unfused"),
        density,
    )


def _calls(case: Case, threads: int) -> tuple[dict[str, Call], float]:
    """The calls to time, in turn, and the share of the blocks that ours computes."""
    shape, feeds = case.shape, operators.qkv(case.shape)
    flat, density = operators.tokens_first(feeds), 1.0
    rival = session(operators.multi_head_attention(shape, case.causal), threads=threads)
    calls = {"fused": bound(rival, flat)}
    own = session(operators.sparse_attention(shape, case.blocks, case.causal), threads=threads)
    if case.blocks is None:
        check_agreement(own.run(None, feeds)[0], rival.run(None, flat)[0])
    else:
        chosen = operators.selection(shape, case.blocks)
        density = operators.actual_density(shape, case.blocks, chosen)
        feeds |= chosen
    calls["ours"] = bound(own, feeds)
    if case.blocks is None and not case.causal:
        between = session(operators.sparse_attention_tokens_first(shape), threads=threads)
        plain = session(operators.unfused(shape), threads=threads)
        calls["same layout"] = bound(between, flat)
        calls["unfused"] = bound(plain, operators.qkv(shape))
    return calls, density


def check_agreement(mine: operators.Floats, rivals: operators.Floats) -> None:
    """Fail unless both computed the same attention."""
    flat = operators.tokens_first({"Y": mine})["Y"]
    error = np.linalg.norm(flat - rivals) / np.linalg.norm(rivals)
    if error > AGREE:
        raise SystemExit(f"ours and the rival disagree: relative L2 {error:.1e}")


def table(title: str, rows: Sequence[Measured], short: bool) -> Table:
    """All rows with their verdicts."""
    target = f"<= {SHORT_RATIO} or +{SHORT_SECONDS * 1e6:.0f} us"
    columns = (
        "S",
        "D",
        "what",
        "actual density",
        "ours",
        "fused",
        "ours / fused",
        "same layout",
        "ours / unfused",
        "target",
        "verdict",
    )
    return Table(
        title,
        columns,
        tuple(_row(row, target if short else f"<= {row.case.target}", short) for row in rows),
    )


def _row(row: Measured, target: str, short: bool) -> tuple[str, ...]:
    met = row.met_short if short else row.met
    return (
        str(row.case.shape.length),
        str(row.case.shape.dim),
        row.case.what,
        f"{row.density:.4f}",
        _time(row.ours),
        _time(row.rival),
        str(row.fused),
        str(row.same_layout or "-"),
        str(row.unfused or "-"),
        target,
        "met" if met else "MISSED",
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


@click.command()
@click.option("--quick", is_flag=True, help=f"Leave out S {LONGEST}.")
@click.option("--threads", default=1, type=click.IntRange(min=1), help="Threads of each session.")
@click.option("--pairs", default=7, type=click.IntRange(min=7), help="Pairs per row.")
@click.option("--out", type=click.Path(path_type=Path), help="Markdown file to write into.")
def main(quick: bool, threads: int, pairs: int, out: Path | None) -> None:
    """Measure, print, and write Markdown."""
    long = [measure(case, pairs, threads) for case in _told(list(long_cases(quick)))]
    short = [measure(Case(Shape(HEADS, length, DIMS[0])), 3 * pairs, threads) for length in SHORT]
    tables = [
        table(f"Long sequences, {threads} threads, H {HEADS}, fp32", long, short=False),
        table(f"Short sequences, {threads} threads, H {HEADS}, fp32", short, short=True),
    ]
    for each in tables:
        show(each)
    if out is not None:
        write_section(out, f"attention-{threads}", "The operator alone", tables, __doc__ or "")


def _told(cases: Sequence[Case]) -> Iterator[Case]:
    with console.status("") as status:
        for number, case in enumerate(cases, 1):
            status.update(
                f"{number} of {len(cases)}: S {case.shape.length}, D {case.shape.dim}, {case.what}"
            )
            yield case


if __name__ == "__main__":
    main()
