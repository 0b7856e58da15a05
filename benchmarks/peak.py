"""What share of a core's multiply-adds the operator reaches, and how fast memory is read."""

import ctypes
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.document import Table, plural, verdict
from benchmarks.paired import Call, bound, session
from benchmarks.problem import tokens
from benchmarks.rivals import ENTRIES
from sparsify.doctor import instruction_set
from sparsify.errors import SparsifyError

TITLE = "share of the multiply-adds that a core can do"
NOTE = """One thread, dense, in seconds of the thread's own time. The peak is that of
`benchmarks/fma_peak.c`, a loop of nothing but multiply-adds, which runs in turn with the operator;
a share is the median over the pairs, in brackets the smallest and the largest. The operator runs
with the instructions that the variable `SPARSIFY_CPU` names. The last rows tell how fast the
machine reads 256 MiB, more than most caches hold, in seconds of the clock
(`benchmarks/read_memory.c`): what the keys and values of few queries can be read at, unless they
stay in a cache."""

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

READ_BYTES = 256 * 2**20
"""Bytes that one look at the memory reads."""

_MISSING = "not used on this processor"
_NO_COMPILER = "no C compiler found"


def table(pairs: int) -> Table:
    """One row per level of instructions and type of numbers, then those of the memory."""
    columns = ("S", "D", "arithmetic", "ours", "peak", "share", "target", "verdict")
    size = (str(PROBLEM.keys), str(PROBLEM.dim))
    rows = [(*size, f"{level.type}, {level.cpu}", *_cells(level, pairs)) for level in LEVELS]
    cores = os.cpu_count() or 1
    rows += [_memory_row(threads, pairs) for threads in sorted({1, cores})]
    return Table("", columns, tuple(rows))


def _memory_row(threads: int, pairs: int) -> tuple[str, ...]:
    what = ("-", "-", f"none: memory read, {plural(threads, 'thread')}", "-")
    with tempfile.TemporaryDirectory() as folder:
        library = compiled("read_memory.c", (), Path(folder))
        if library is None:
            return (*what, _NO_COMPILER, "-", "-", "-")
        rates = [bytes_per_second(library, threads, READ_BYTES) for _ in range(pairs)]
    rate = f"{statistics.median(rates) / 1e9:.1f} GB/s"
    return (*what, f"{rate} ({min(rates) / 1e9:.1f}-{max(rates) / 1e9:.1f})", "-", "-", "-")


def bytes_per_second(library: ctypes.CDLL, threads: int, size: int) -> float:
    """Let every thread read its part of `size` bytes: all bytes by the seconds of the clock."""
    read = library.read_memory
    read.argtypes, read.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_uint64
    parts = np.array_split(np.ones(size // 8, np.uint64), threads)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(time.sleep, [0.01] * threads))  # starts the threads
        start = time.perf_counter()
        list(pool.map(lambda part: read(part.ctypes.data, part.size), parts))
        return size / (time.perf_counter() - start)


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
        library = compiled("fma_peak.c", (*level.flags, "-ffp-contract=fast"), Path(folder))
        if library is None:
            return _not_measured(_NO_COMPILER)
        peak = library.fma_peak
        peak.argtypes, peak.restype = [ctypes.c_int64], ctypes.c_double
        return _shares(ours, peak, pairs, level.least)


def _not_measured(why: str) -> tuple[str, ...]:
    return (why, "-", "-", "-", "-")


def _shares(
    ours: Call, peak: Callable[[int], float], pairs: int, least: float | None
) -> tuple[str, ...]:
    work = 4.0 * PROBLEM.heads * PROBLEM.queries * PROBLEM.keys * PROBLEM.dim
    measured = [(float(peak(ROUNDS)), work / _thread_seconds(ours)) for _ in range(pairs)]
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


def compiled(source: str, flags: Sequence[str], folder: Path) -> ctypes.CDLL | None:
    """A C file beside this one as a library, None without a compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    path, library = Path(__file__).with_name(source), folder / f"{source}.so"
    command = [compiler, "-O3", *flags, "-shared", "-fPIC", str(path), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))
