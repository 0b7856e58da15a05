"""What share of a core's multiply-adds the operator reaches, for each instruction set."""

import ctypes
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.document import Table, verdict
from benchmarks.paired import Call, bound, session
from benchmarks.problem import tokens
from benchmarks.rivals import ENTRIES
from sparsify.doctor import instruction_set
from sparsify.errors import SparsifyError

TITLE = "share of the multiply-adds that a core can do"
NOTE = """One thread, dense, in seconds of the thread's own time. The peak is that of
`benchmarks/fma_peak.c`, a loop of nothing but multiply-adds, which runs in turn with the operator;
a share is the median over the pairs, in brackets the smallest and the largest. The operator runs
with the instructions that the variable `SPARSIFY_CPU` names."""

PROBLEM = tokens(2048)


@dataclass(frozen=True)
class Level:
    """Instructions: their name for the kernel and the type it multiplies, flags for compilers."""

    cpu: str
    type: str
    flags: tuple[str, ...]
    least: float | None = None
    """The share that is wanted."""


LEVELS = (
    Level("avx2", "float32", ("-march=x86-64-v3",), 0.80),
    Level("avx512", "float32", ("-march=x86-64-v4",)),
    Level("avx512", "bfloat16", ("-march=x86-64-v4", "-mavx512bf16")),
)
ROUNDS = 2_000_000
"""Multiply-adds per chain in one look at the peak: tens of milliseconds."""

_MISSING = "not available on this processor"
_SOURCE = Path(__file__).with_name("fma_peak.c")


def table(pairs: int) -> Table:
    """One row per level of instructions and type of numbers."""
    columns = ("S", "D", "arithmetic", "ours", "peak", "share", "target", "verdict")
    size = (str(PROBLEM.keys), str(PROBLEM.dim))
    rows = [(*size, f"{level.type}, {level.cpu}", *_cells(level, pairs)) for level in LEVELS]
    return Table("", columns, tuple(rows))


def _cells(level: Level, pairs: int) -> tuple[str, ...]:
    bfloat16 = level.type == "bfloat16"
    with _requested(level.cpu):
        try:
            found = instruction_set(bfloat16=bfloat16)
        except SparsifyError:
            return _not_measured(_MISSING)
        if found != level.cpu + ("bf16" if bfloat16 else ""):
            return _not_measured(_MISSING)
        entry = ENTRIES["ours"](replace(PROBLEM, bfloat16=bfloat16))
        ours = bound(session(entry.model, threads=1, bfloat16=bfloat16), entry.feeds)
    with tempfile.TemporaryDirectory() as folder:
        peak = _compiled(level, Path(folder))
        if peak is None:
            return _not_measured("no C compiler found")
        return _shares(ours, peak, pairs, level.least)


def _not_measured(why: str) -> tuple[str, ...]:
    return (why, "-", "-", "-", "-")


def _shares(
    ours: Call, peak: Callable[[int], float], pairs: int, least: float | None
) -> tuple[str, ...]:
    work = 4.0 * PROBLEM.heads * PROBLEM.queries * PROBLEM.keys * PROBLEM.dim
    measured = [(peak(ROUNDS), work / _thread_seconds(ours)) for _ in range(pairs)]
    shares = [mine / most for most, mine in measured]
    share = statistics.median(shares)
    return (
        f"{statistics.median(mine for _, mine in measured) / 1e9:.1f} GFLOP/s",
        f"{statistics.median(most for most, _ in measured) / 1e9:.1f} GFLOP/s",
        f"{share:.1%} ({min(shares):.1%}-{max(shares):.1%})",
        "-" if least is None else f">= {least:.0%}",
        "-" if least is None else verdict(share >= least),
    )


def _thread_seconds(call: Call) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


@contextmanager
def _requested(level: str) -> Iterator[None]:
    """Let sessions that are created meanwhile use one instruction set."""
    before = os.environ.get("SPARSIFY_CPU")
    os.environ["SPARSIFY_CPU"] = level
    try:
        yield
    finally:
        del os.environ["SPARSIFY_CPU"]
        if before is not None:
            os.environ["SPARSIFY_CPU"] = before


def _compiled(level: Level, folder: Path) -> Callable[[int], float] | None:
    """The loop of multiply-adds, compiled for these instructions: operations per second."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    library = folder / "fma_peak.so"
    flags = ["-O3", *level.flags, "-ffp-contract=fast", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(_SOURCE), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).fma_peak
    function.argtypes, function.restype = [ctypes.c_int64], ctypes.c_double
    return lambda rounds: float(function(rounds))
