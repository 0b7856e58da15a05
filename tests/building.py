"""What the tests of the native kernel share: its files, the levels of instructions, compilers."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "tests" / "native"
KERNEL = ROOT / "ops" / "sparsify_ops" / "native" / "cpu"
STANDARD = ("-std=gnu++17", "-O1")
NUMERIC = ("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
LEVELS = {
    "v2": ("kIsaV2", "isa_v2.cpp", "-march=x86-64-v2"),
    "avx2": ("kIsaAvx2", "isa_avx2.cpp", "-march=x86-64-v3"),
    "avx512": ("kIsaAvx512", "isa_avx512.cpp", "-march=x86-64-v4"),
    "avx512bf16": ("kIsaAvx512Bf16", "isa_avx512bf16.cpp", "-march=x86-64-v4 -mavx512bf16"),
}
NEEDS = {
    "v2": {"sse4_2"},
    "avx2": {"avx2", "fma"},
    "avx512": {"avx512f", "avx512bw", "avx512vl"},
    "avx512bf16": {"avx512_bf16"},
}
CPUINFO = Path("/proc/cpuinfo")
FLAGS = set(CPUINFO.read_text(encoding="utf-8").split()) if CPUINFO.exists() else set()
ARITHMETIC = (
    "attention.cpp",
    "choose.cpp",
    "keys.cpp",
    "mask_states.cpp",
    "mass.cpp",
    "residual.cpp",
)
DOOR = (
    "attention_op.cpp",
    "custom_op.cpp",
    "dispatch.cpp",
    "info_op.cpp",
    "inputs.cpp",
    "register.cpp",
    "selector_inputs.cpp",
    "selector_ops.cpp",
    "shape.cpp",
    "tensor.cpp",
)


def needs_level(level: str) -> None:
    """Skip where the machine lacks a level."""
    if not NEEDS[level] <= FLAGS:
        pytest.skip(f"no {level} here")


def sanitizing(sanitizer: str, folder: Path) -> list[str]:
    """Give g++ with a sanitizer and what all files are compiled with; skip without its runtime."""
    watch = ["-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-pthread"]
    command = ["g++", *STANDARD, *watch]
    (folder / "empty.cpp").write_text("int main() {}")
    probe = [*command, str(folder / "empty.cpp"), "-o", str(folder / "empty")]
    if (
        shutil.which("g++") is None
        or subprocess.run(probe, capture_output=True, check=False).returncode
    ):
        pytest.skip(f"no g++ with a runtime for -fsanitize={sanitizer} here")
    return [*command, *NUMERIC, f"-I{KERNEL}"]


def replay(program: Sequence[str], runs: int, environment: Mapping[str, str] | None = None) -> None:
    """Run a driver on its inputs: all must hold, and enough must be accepted to mean something."""
    command = [*program, str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    accepted = int(done.stdout.split()[0])
    assert 0.5 * runs < accepted < runs, "some inputs are malformed, most are not"
