"""What the built CPU library contains: exports, dependencies, and where newer instructions are."""

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache

import pytest

from sparsify_ops.kernels import CPU

TOOLS = ("nm", "objdump", "readelf")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.skipif(CPU.unavailable() is not None, reason="no native library is built"),
    pytest.mark.skipif(bool(MISSING), reason=f"binutils lack {', '.join(MISSING)}"),
    pytest.mark.skipif(platform.system() != "Linux", reason="not an ELF library"),
]
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="one level only")

LEVELS = ("isa_v2.cpp", "isa_avx2.cpp", "isa_avx512.cpp", "isa_avx512bf16.cpp")
V3 = re.compile(
    r"^v(?!err\b|erw\b)[a-z]|%ymm|%zmm"  # AVX and later are encoded anew
    r"|^(?:shlx|sarx|shrx|andn|mulx|rorx|bextr|bls\w+|bzhi|pdep|pext|lzcnt|movbe)\b"
)
V4 = re.compile(r"%zmm|%k[0-7]\b")


def run(*command: str) -> str:
    """Give what a tool prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@lru_cache(maxsize=1)
def files() -> dict[int, str]:
    """Source file of each local function by address; a file stands before its own symbols."""
    found: dict[int, str] = {}
    file = ""
    for line in run("readelf", "-sW", str(CPU.library())).splitlines():
        parts = line.split()
        if len(parts) < 8:
            continue
        if parts[3] == "FILE":
            file = parts[7]
        elif parts[3] == "FUNC" and parts[4] == "LOCAL" and parts[6] != "UND":
            found[int(parts[1], 16)] = file
    return found


@lru_cache(maxsize=1)
def instructions() -> tuple[tuple[str, str], ...]:
    """Every instruction with the file whose function it stands in, "" where that is not known."""
    return tuple(_instructions())


def _instructions() -> Iterator[tuple[str, str]]:
    file = ""
    listing = run("objdump", "-d", "--no-show-raw-insn", "-w", str(CPU.library()))
    for line in listing.splitlines():
        if heading := re.match(r"([0-9a-f]+) <.*>:$", line):
            file = files().get(int(heading[1], 16), "")
        elif body := re.match(r"\s+[0-9a-f]+:\s+(\S.*)", line):
            yield file, body[1]


def using(pattern: re.Pattern[str]) -> dict[str, int]:
    """How many instructions of each file match."""
    count: dict[str, int] = {}
    for file, text in instructions():
        if pattern.search(text):
            count[file] = count.get(file, 0) + 1
    return count


def test_one_symbol_is_exported() -> None:
    names = [
        line.split()[-1]
        for line in run("nm", "-D", "--defined-only", str(CPU.library())).splitlines()
    ]
    assert names == ["RegisterCustomOps"]


def test_nothing_is_needed_that_a_plain_system_lacks() -> None:
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", str(CPU.library()))))
    assert needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


@x86
def test_every_level_is_in_the_library() -> None:
    assert set(LEVELS) <= set(files().values())


@x86
@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [(V3, LEVELS[1:]), (V4, LEVELS[2:])],
    ids=["v3", "v4"],
)
def test_newer_instructions_stand_in_dispatched_files_only(
    pattern: re.Pattern[str], allowed: tuple[str, ...]
) -> None:
    found = using(pattern)
    assert set(found) == set(allowed), found
