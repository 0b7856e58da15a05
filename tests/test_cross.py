"""The native sources under other compilers and for other processors than the ones CI builds with.

Clang comes as `clang++` or, for every target, from `pip install ziglang`; what is not found is
skipped.
"""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from building import ARITHMETIC, DOOR, KERNEL, LEVELS, NATIVE, NUMERIC, STANDARD, replay

X86 = ("x86_64-linux-gnu", "x86_64-windows-gnu")
ARM = ("aarch64-linux-gnu", "aarch64-macos")
PORTABLE = "isa_portable.cpp"
# Zig has names of its own for the levels.
ZIG_LEVELS = {
    "v2": "x86_64_v2",
    "avx2": "x86_64_v3",
    "avx512": "x86_64_v4",
    "avx512bf16": "x86_64_v4+avx512bf16",
}


def zig(target: str) -> list[str]:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("no Zig here: pip install ziglang")
    return [sys.executable, "-m", "ziglang", "c++", "-target", target]


def on_path(compiler: str) -> list[str]:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    return [compiler]


def complaints(compiler: list[str], folder: Path, levels: Mapping[str, str]) -> str:
    """Compile every file; what the compiler says. Without levels, the portable kernel."""
    files = [(name, "") for name in (*ARITHMETIC, *DOOR)]
    files += [(LEVELS[level][1], march) for level, march in levels.items()]
    said = ""
    for name, march in files if levels else [*files, (PORTABLE, "")]:
        command = [*compiler, *STANDARD, "-Wall", "-Wextra", *NUMERIC, *march.split()]
        command += ["-c", str(KERNEL / name), "-o", str(folder / "object")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said += done.stdout + done.stderr + ("" if done.returncode == 0 else f"{name} failed\n")
    return said


@pytest.mark.parametrize("target", X86)
def test_zig_compiles_for_x86_64(tmp_path: Path, target: str) -> None:
    levels = {level: f"-march={name}" for level, name in ZIG_LEVELS.items()}
    assert complaints(zig(target), tmp_path, levels) == ""


@pytest.mark.parametrize("target", ARM)
def test_zig_compiles_for_aarch64(tmp_path: Path, target: str) -> None:
    assert complaints(zig(target), tmp_path, {}) == ""


def test_gcc_compiles_for_aarch64(tmp_path: Path) -> None:
    assert complaints(on_path("aarch64-linux-gnu-g++"), tmp_path, {}) == ""


def test_clang_compiles_for_x86_64(tmp_path: Path) -> None:
    levels = {level: march for level, (_, _, march) in LEVELS.items()}
    assert complaints([*on_path("clang++"), "--target=x86_64-linux-gnu"], tmp_path, levels) == ""


def test_the_portable_kernel_runs_on_aarch64(tmp_path: Path) -> None:
    """As tests/test_native.py does it, without a sanitizer, in an emulator."""
    (emulator,) = on_path("qemu-aarch64")
    program = tmp_path / "drive"
    command = [*zig("aarch64-linux-musl"), "-static", *STANDARD, *NUMERIC, f"-I{KERNEL}"]
    command += ["-DSPARSIFY_LEVEL=sparsify::kIsaPortable"]
    sources = [NATIVE / "drive.cpp", NATIVE / "replay.cpp"]
    sources += [KERNEL / name for name in (PORTABLE, *ARITHMETIC)]
    subprocess.run([*command, *map(str, sources), "-o", str(program)], check=True)
    replay([emulator, str(program)], 100)
