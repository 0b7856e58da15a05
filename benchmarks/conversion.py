"""Time and peak memory of the converter, in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# The parent of the measured process must be small: Linux counts what a process was before it
# became another program, so a child of this one would inherit the memory of the models here.
_WATCH = """
import json, resource, subprocess, sys, time
start = time.monotonic()
subprocess.run(sys.argv[1:], check=True)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"seconds": time.monotonic() - start, "peak": usage.ru_maxrss}))
"""
_CONVERT = "from sparsify.cli import main; main()"

_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in what the system counts peak memory in."""


@dataclass(frozen=True)
class Conversion:
    """What one run of `sparsify MODEL -o OUT --no-verify` took: seconds, and bytes at the peak."""

    seconds: float
    peak: int


def convert(model: Path, output: Path, options: Sequence[str] = ()) -> Conversion:
    """Convert a model with the command line, without the end-to-end check, and watch it."""
    command = [sys.executable, "-c", _CONVERT, str(model), "-o", str(output), "-q", "--no-verify"]
    watched = [sys.executable, "-c", _WATCH, *command, *options]
    answer = subprocess.run(watched, check=True, capture_output=True, text=True).stdout
    found = json.loads(answer)
    return Conversion(found["seconds"], found["peak"] * _UNIT)
