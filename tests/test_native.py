"""The native code under sanitizers, on arbitrary inputs: see tests/native/drive.cpp and abi.cpp."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from building import (
    ARITHMETIC,
    DOOR,
    FLAGS,
    KERNEL,
    LEVELS,
    NATIVE,
    NEEDS,
    needs_level,
    replay,
    sanitizing,
)

MEMORY = "address,undefined"


def build(folder: Path, target: str, sanitizer: str, files: Sequence[str], *flags: str) -> Path:
    """Compile a fuzz target, and what it drives, into a program that replays inputs."""
    program = folder / target
    sources = [NATIVE / f"{target}.cpp", NATIVE / "replay.cpp", *(KERNEL / name for name in files)]
    command = [*sanitizing(sanitizer, folder), *flags, *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("sanitizer", "runs"), [(MEMORY, 1500), ("thread", 500)])
def test_any_problem(tmp_path: Path, sanitizer: str, runs: int, level: str) -> None:
    """One thread and three give the same bits, and nothing is read or written outside."""
    needs_level(level)
    isa, file, march = LEVELS[level]
    flags = [*march.split(), f"-DSPARSIFY_LEVEL=sparsify::{isa}"]
    replay([str(build(tmp_path, "drive", sanitizer, (file, *ARITHMETIC), *flags))], runs)


def objects(folder: Path) -> list[str]:
    """Compile the files of the levels, each for its own instructions."""
    made = []
    for _, file, march in LEVELS.values():
        made.append(str(folder / f"{file}.o"))
        command = [*sanitizing(MEMORY, folder), *march.split(), "-c", str(KERNEL / file)]
        subprocess.run([*command, "-o", made[-1]], check=True)
    return made


def test_any_call(tmp_path: Path) -> None:
    """Whatever the runtime hands over is computed twice alike or refused in a sentence."""
    needs_level("v2")
    program = build(tmp_path, "abi", MEMORY, (*ARITHMETIC, *DOOR), *objects(tmp_path))
    for level in ("v2", "avx2", "avx512"):
        if NEEDS[level] <= FLAGS:
            replay([str(program)], 1500, {**os.environ, "SPARSIFY_CPU": level})
