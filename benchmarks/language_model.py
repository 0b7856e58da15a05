"""A trained language model with sliding windows, exact: `python -m benchmarks.language_model`."""

import multiprocessing
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import onnx
from onnx import NodeProto

import sparsify
from benchmarks import gemma
from benchmarks.document import Table, console, duration, plural, show, write_section
from benchmarks.gemma import LAYERS, WINDOW, WINDOWED, Gemma
from benchmarks.paired import Feeds, interleave, ratio, session
from benchmarks.profile import events
from sparsify.report import Report
from sparsify.timing import Timing

NOTE = f"""
Gemma 3 270M reads an article of Wikipedia in one go: token ids in, hidden states out, no cache, as
torch exports it. {WINDOWED} of its {LAYERS} attentions have a window of {WINDOW} tokens, the others
see all before; the graph computes both masks from the length. It is rewritten with the default
options: exactly. Both run in one process with as many threads, none of which spin, in turn; a ratio
is the median over the pairs, in brackets the smallest and the largest. Peak memory is that of a
process which does nothing but load one model and run it once.
"""

SPEEDUPS = {4096: 2.5, 8192: 4.5}
"""The speed-up wanted at least, by tokens."""

SHARES = {8192: 1 / 3}
"""The share of the original's peak memory wanted at most, by tokens."""

DIFFERENCE = 1e-4
"""By how much the cross-entropy may differ, in nats per token."""

SCORED = 2048
"""Tokens that the cross-entropy is measured on: four windows."""

TRACED = 521
"""Tokens of the run whose tensors are counted: a prime, so that no other size is the same."""

LONG, FEW = 8192, 3
"""From so many tokens on, at most so many pairs are run."""

_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in what the system counts peak memory in."""

Files = Mapping[str, Path]


@dataclass(frozen=True)
class Exactness:
    """What became of the attentions, and the numbers before and after."""

    report: Report
    causal: int
    windowed: int
    squares: Mapping[str, int]
    losses: Mapping[str, float]

    def table(self) -> Table:
        """One row for each property."""
        before, after = self.losses["original"], self.losses["exact"]
        rows = (
            _counted("attentions found", self.report.found, LAYERS),
            _counted("attentions replaced", self.report.replaced, LAYERS),
            _counted("of them causal", self.causal, LAYERS),
            _counted(f"of them with a window of {WINDOW}", self.windowed, WINDOWED),
            ("S x S tensors, original", str(self.squares["original"]), "-", "-"),
            _counted("S x S tensors, exact", self.squares["exact"], 0),
            (f"cross-entropy on {SCORED} tokens, original", f"{before:.6f}", "-", "-"),
            ("cross-entropy, exact", f"{after:.6f}", "-", "-"),
            (
                "cross-entropy, difference",
                f"{after - before:+.1e}",
                f"<= {DIFFERENCE:.0e}",
                _verdict(abs(after - before) <= DIFFERENCE),
            ),
        )
        return Table("Exactness", ("property", "found", "target", "verdict"), rows)


def _counted(name: str, found: int, wanted: int) -> tuple[str, ...]:
    return name, str(found), str(wanted), _verdict(found == wanted)


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def check(model: Gemma, files: Files, report: Report, threads: int) -> Exactness:
    """Look at the rewritten file, and run both on the article."""
    graph = onnx.load(files["exact"], load_external_data=False).graph
    settings = [_integers(node) for node in graph.node if node.op_type == "SparseAttention"]
    losses = {}
    for name, path in files.items():
        hidden = session(path, threads=threads).run(None, dict(model.feeds(SCORED)))[0]
        losses[name] = gemma.cross_entropy(model, hidden)
    return Exactness(
        report,
        sum(each["is_causal"] == 1 or each["right_window_size"] == 0 for each in settings),
        sum(each["left_window_size"] == WINDOW - 1 for each in settings),
        {name: squares(path, model.feeds(TRACED)) for name, path in files.items()},
        losses,
    )


def _integers(node: NodeProto) -> dict[str, int]:
    """The integer attributes of an operator, the neutral ones included."""
    neutral = {"is_causal": 0, "left_window_size": -1, "right_window_size": -1}
    given = {each.name: each.i for each in node.attribute if each.type == each.INT}
    return neutral | given


def squares(path: Path, feeds: Feeds) -> int:
    """Count the tensors computed in one run that have two sizes as long as the sequence."""
    length = feeds["input_ids"].shape[1]
    return sum(
        shape.count(length) > 1 for event in events(path, feeds) for shape in _computed(event)
    )


def _computed(event: Mapping[str, Any]) -> list[list[int]]:
    """The shapes of what a node computed, for the events of a profile that tell."""
    outputs = event.get("args", {}).get("output_type_shape", [])
    return [shape for output in outputs for shape in output.values()]


def time_lengths(
    model: Gemma, files: Files, lengths: Sequence[int], pairs: int, threads: int
) -> dict[int, dict[str, Timing]]:
    """Time both models in turn, shortest input first."""
    sessions = {name: session(path, threads=threads) for name, path in files.items()}
    times = {}
    for length in sorted(lengths):
        feeds = dict(model.feeds(length))
        calls = {
            name: lambda active=active, feeds=feeds: active.run(None, feeds)
            for name, active in sessions.items()
        }
        times[length] = interleave(calls, min(pairs, FEW) if length >= LONG else pairs)
    return times


def speed_table(times: Mapping[int, Mapping[str, Timing]]) -> Table:
    """All lengths."""
    columns = ("tokens", "original", "exact", "ratio", "speed-up", "target", "verdict")
    return Table("Speed", columns, tuple(_speed_row(*each) for each in times.items()))


def _speed_row(length: int, times: Mapping[str, Timing]) -> tuple[str, ...]:
    found, wanted = ratio(times["exact"], times["original"]), SPEEDUPS.get(length)
    speedup = 1 / found.median
    return (
        str(length),
        *(duration(times[name].median) for name in ("original", "exact")),
        str(found),
        f"{speedup:.2f}x",
        "-" if wanted is None else f">= {wanted}x",
        "-" if wanted is None else _verdict(speedup >= wanted),
    )


def peak_memory(path: Path, feeds: Feeds, threads: int) -> int:
    """Bytes at the peak of a fresh process that loads the model and runs it once."""
    # Not "spawn": Linux would count in what this process was before it started the other.
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_run_once, path, feeds, threads).result()


def _run_once(path: Path, feeds: Feeds, threads: int) -> int:
    session(path, threads=threads).run(None, dict(feeds))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def memory_table(length: int, peaks: Mapping[str, int]) -> Table:
    """One length."""
    share, wanted = peaks["exact"] / peaks["original"], SHARES.get(length)
    row = (
        str(length),
        *(f"{peaks[name] / 1e6:.0f} MB" for name in ("original", "exact")),
        f"{share:.3f}",
        "-" if wanted is None else f"<= {wanted:.3f}",
        "-" if wanted is None else _verdict(share <= wanted),
    )
    return Table(
        "Peak memory", ("tokens", "original", "exact", "share", "target", "verdict"), (row,)
    )


@click.command()
@click.option(
    "--cache",
    default=gemma.default_cache,
    type=click.Path(path_type=Path),
    show_default="the user's cache",
    help="Folder that keeps the exported model (1.1 GB; once more as much while running).",
)
@click.option(
    "--length",
    "lengths",
    multiple=True,
    type=click.IntRange(2, gemma.LONGEST),
    default=(512, 2048, 4096, 8192),
    show_default=True,
    help="Tokens to read; may be given again.",
)
@click.option("--threads", default=2, type=click.IntRange(min=1), help="Threads of each session.")
@click.option("--pairs", default=5, type=click.IntRange(min=1), help="Rounds per length.")
@click.option("--out", type=click.Path(path_type=Path), help="Markdown file to write into.")
def main(cache: Path, lengths: tuple[int, ...], threads: int, pairs: int, out: Path | None) -> None:
    """Rewrite a language model exactly; check it on real text, time it, watch its memory."""
    with console.status("exporting the model") as status:
        model = gemma.load(cache)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            files = {"original": model.path, "exact": Path(folder) / "exact.onnx"}
            status.update("converting")
            report = sparsify.optimize(files["original"], files["exact"])
            status.update("measuring memory")
            peaks = {
                name: peak_memory(path, model.feeds(max(lengths)), threads)
                for name, path in files.items()
            }
            status.update("comparing")
            exactness = check(model, files, report, threads)
            status.update("timing")
            times = time_lengths(model, files, lengths, pairs, threads)
    tables = [exactness.table(), speed_table(times), memory_table(max(lengths), peaks)]
    for each in tables:
        show(each)
    if out is not None:
        title = f"A language model, {plural(threads, 'thread')}"
        write_section(out, f"language model {threads}", title, tables, NOTE)


if __name__ == "__main__":
    main()
