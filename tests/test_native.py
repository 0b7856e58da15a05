"""The attention kernel under sanitizers, on arbitrary problems: see tests/native/drive.cpp."""

import subprocess
from pathlib import Path

import pytest
from building import ARITHMETIC, KERNEL, LEVELS, NATIVE, needs_level, replay, sanitizing


def build(folder: Path, sanitizer: str, level: str) -> Path:
    """Compile the driver and the kernel with a sanitizer."""
    isa, file, march = LEVELS[level]
    sources = [NATIVE / "drive.cpp", *(KERNEL / name for name in (file, *ARITHMETIC))]
    program = folder / "drive"
    command = [*sanitizing(sanitizer, folder), *march.split(), f"-DSPARSIFY_LEVEL=sparsify::{isa}"]
    subprocess.run([*command, *map(str, sources), "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("sanitizer", "runs"), [("address,undefined", 1500), ("thread", 500)])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str, runs: int, level: str) -> None:
    """One thread and three give the same bits, and nothing is read or written outside."""
    needs_level(level)
    replay([str(build(tmp_path, sanitizer, level))], runs)
