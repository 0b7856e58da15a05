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
from pathlib import Path

from benchmarks.document import Table, verdict
from benchmarks.paired import Call, bound, session
from benchmarks.problem import tokens
from benchmarks.rivals import ENTRIES

TITLE = "share of the multiply-adds that a core can do"
NOTE = """One thread, dense, float32, in seconds of the thread's own time. The peak is that of
`benchmarks/fma_peak.c`, a loop of nothing but multiply-adds, which runs in turn with the operator;
a share is the median over the pairs, in brackets the smallest and the largest. The operator runs
with the instructions that the variable `SPARSIFY_CPU` names."""

PROBLEM = tokens(2048)
LEVELS = {"avx2": "x86-64-v3", "avx512": "x86-64-v4"}
"""What the kernel calls its instruction sets, and what compilers call them."""
SHARES = {"avx2": 0.80}
ROUNDS = 2_000_000
"""Multiply-adds per chain in one look at the peak: tens of milliseconds."""

_MISSING = "not available on this processor"
_SOURCE = Path(__file__).with_name("fma_peak.c")


def table(pairs: int) -> Table:
    """One row per instruction set, and one for bfloat16 arithmetic."""
    columns = ("S", "D", "arithmetic", "ours", "peak", "share", "target", "verdict")
    size = (str(PROBLEM.keys), str(PROBLEM.dim))
    rows = [(*size, f"float32, {level}", *_cells(level, pairs)) for level in LEVELS]
    rows.append((*size, "bfloat16, on request", *_not_measured(_bfloat16())))
    return Table("", columns, tuple(rows))


def _cells(level: str, pairs: int) -> tuple[str, ...]:
    with _requested(level):
        try:
            entry = ENTRIES["ours"](PROBLEM)
            ours = bound(session(entry.model, threads=1), entry.feeds)
        except Exception as error:  # ONNX Runtime has a class of its own for every kind of failure
            if not any(words in str(error) for words in ("does not have", "must be one of")):
                raise
            return _not_measured(_MISSING)
    with tempfile.TemporaryDirectory() as folder:
        peak = _compiled(level, Path(folder))
        if peak is None:
            return _not_measured("no C compiler found")
        return _shares(ours, peak, pairs, SHARES.get(level))


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


def _compiled(level: str, folder: Path) -> Callable[[int], float] | None:
    """The loop of multiply-adds, compiled for one instruction set: operations per second."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    library = folder / f"fma_peak_{level}.so"
    flags = ["-O3", f"-march={LEVELS[level]}", "-ffp-contract=fast", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(_SOURCE), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).fma_peak
    function.argtypes, function.restype = [ctypes.c_int64], ctypes.c_double
    return lambda rounds: float(function(rounds))


def _bfloat16() -> str:
    """Why there is no figure for arithmetic in bfloat16."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        flags = []
    return "the operator has none" if "avx512_bf16" in flags else _MISSING
