"""Peak memory of one run beyond its inputs and outputs, in a process of its own."""

import ctypes
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort

from benchmarks.cases import ISO
from benchmarks.document import Table, plural, verdict
from benchmarks.paired import ort_values, session
from benchmarks.problem import Blocks, Problem, tokens
from benchmarks.rivals import ENTRIES

TITLE = "peak memory"
NOTE = """How much the resident memory of a process grows at most during the first run of a session,
with inputs and outputs in place, after a run of another session on few tokens. `iso` needs the
means of K and V, the variance and the count of every group of every head: that is computed, and
allowed for."""

PER_THREAD = 1e6
"""Bytes that a thread may take."""

LENGTH, TINY = 8192, 512
PROBLEMS = {
    "dense": tokens(LENGTH),
    "20%": tokens(LENGTH, blocks=Blocks(0.2, 64)),
    "20%, iso": tokens(LENGTH, blocks=Blocks(0.2, 16), residual=ISO),
    "dense, float16": tokens(LENGTH, dtype="float16"),
    "20%, float16": tokens(LENGTH, dtype="float16", blocks=Blocks(0.2, 64)),
}

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def table(threads: int) -> Table:
    """One row per problem."""
    peak = f"peak, {plural(threads, 'thread')}"
    columns = ("S", "D", "computed", peak, "groups, computed", "target", "verdict")
    return Table(
        "", columns, tuple(_row(problem, name, threads) for name, problem in PROBLEMS.items())
    )


def _row(problem: Problem, name: str, threads: int) -> tuple[str, ...]:
    groups = group_bytes(problem)
    limit = threads * PER_THREAD + groups
    size, target = (str(problem.keys), str(problem.dim), name), f"<= {_mega(limit)}"
    if not _CLEAR.exists():
        return (*size, "not measured on this system", _mega(groups), target, "-")
    command = [sys.executable, "-m", "benchmarks.memory", name, str(threads)]
    peak = int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return (*size, _mega(peak), _mega(groups), target, verdict(peak <= limit))


def _mega(size: float) -> str:
    return f"{size / 1e6:.2f} MB"


def group_bytes(problem: Problem) -> int:
    """What the statistics of the groups of left-out keys take, in float32."""
    if problem.blocks is None or not problem.residual:
        return 0
    groups = -(-problem.keys // problem.blocks.k_block)
    return problem.kv_heads * groups * (2 * problem.dim + 2) * 4


def growth(problem: Problem, threads: int) -> int:
    """Bytes that the first run of a session adds to this process at its peak."""
    entry = ENTRIES["ours"](replace(problem, queries=TINY, keys=TINY))
    session(entry.model, threads=threads).run_with_ort_values(None, ort_values(entry.feeds))
    entry = ENTRIES["ours"](problem)
    active = session(entry.model, threads=threads)
    binding = active.io_binding()
    for name, value in ort_values(entry.feeds).items():
        binding.bind_ortvalue_input(name, value)
    shape = (1, problem.heads, problem.queries, problem.dim)
    # Written, so that all of its pages are there.
    output = ort.OrtValue.ortvalue_from_numpy(np.ones(shape, problem.dtype))
    binding.bind_ortvalue_output("Y", output)
    _forget()
    before = _status("VmRSS")
    active.run_with_iobinding(binding)
    return _status("VmHWM") - before


def _forget() -> None:
    """Give freed memory back, so that it counts when it is taken again, and reset the peak."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)
    _CLEAR.write_text("5")


def _status(key: str) -> int:
    found = re.search(rf"^{key}:\s*(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{_STATUS} has no {key}")
    return int(found[1]) * 1024


if __name__ == "__main__":
    print(growth(PROBLEMS[sys.argv[1]], int(sys.argv[2])))
