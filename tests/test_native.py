"""The attention kernel under sanitizers, on arbitrary problems: see tests/native/drive.cpp."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNEL = ROOT / "ops" / "sparsify_ops" / "native" / "cpu"
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
PORTABLE = ("attention.cpp", "keys.cpp", "residual.cpp", "mask_states.cpp")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


def build(folder: Path, sanitizer: str, level: str) -> Path:
    """Compile the driver and the kernel with a sanitizer; skip where its runtime is missing."""
    isa, file, march = LEVELS[level]
    flags = [
        "-std=gnu++17",
        "-O1",
        "-g",
        f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all",
        "-pthread",
    ]
    numeric = ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", *march.split()]
    (folder / "empty.cpp").write_text("int main() {}")
    probe = ["g++", *flags, str(folder / "empty.cpp"), "-o", str(folder / "empty")]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip(f"g++ has no runtime for -fsanitize={sanitizer}")
    sources = [
        ROOT / "tests" / "native" / "drive.cpp",
        *(KERNEL / name for name in (file, *PORTABLE)),
    ]
    program = folder / "drive"
    command = ["g++", *flags, *numeric, f"-I{KERNEL}", f"-DSPARSIFY_LEVEL=sparsify::{isa}"]
    subprocess.run([*command, *map(str, sources), "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("sanitizer", "runs"), [("address,undefined", 1500), ("thread", 500)])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str, runs: int, level: str) -> None:
    """One thread and three give the same bits, and nothing is read or written outside."""
    if not NEEDS[level] <= FLAGS:
        pytest.skip(f"no {level} here")
    program = build(tmp_path, sanitizer, level)
    done = subprocess.run([str(program), str(runs)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    accepted = int(done.stdout.split()[0])
    assert 0.5 * runs < accepted < runs, "some problems are malformed, most are not"
