"""The attention kernel under sanitizers, on arbitrary problems: see tests/native/drive.cpp."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNEL = ROOT / "ops" / "sparsify_ops" / "native" / "cpu"
X86 = platform.machine() == "x86_64"
LEVEL = (
    ("kIsaV2", "isa_v2.cpp", "-march=x86-64-v2")
    if X86
    else ("kIsaPortable", "isa_portable.cpp", "-O1")
)
PORTABLE = ("attention.cpp", "keys.cpp", "residual.cpp", "mask_states.cpp")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


def build(folder: Path, sanitizer: str) -> Path:
    """Compile the driver and the kernel with a sanitizer; skip where its runtime is missing."""
    level, file, march = LEVEL
    flags = [
        "-std=gnu++17",
        "-O1",
        "-g",
        f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all",
        "-pthread",
    ]
    numeric = ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", march]
    (folder / "empty.cpp").write_text("int main() {}")
    probe = ["g++", *flags, str(folder / "empty.cpp"), "-o", str(folder / "empty")]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip(f"g++ has no runtime for -fsanitize={sanitizer}")
    sources = [
        ROOT / "tests" / "native" / "drive.cpp",
        *(KERNEL / name for name in (file, *PORTABLE)),
    ]
    program = folder / "drive"
    command = ["g++", *flags, *numeric, f"-I{KERNEL}", f"-DSPARSIFY_LEVEL=sparsify::{level}"]
    subprocess.run([*command, *map(str, sources), "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize(("sanitizer", "runs"), [("address,undefined", 1500), ("thread", 500)])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str, runs: int) -> None:
    """One thread and three give the same bits, and nothing is read or written outside."""
    program = build(tmp_path, sanitizer)
    done = subprocess.run([str(program), str(runs)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    accepted = int(done.stdout.split()[0])
    assert 0.5 * runs < accepted < runs, "some problems are malformed, most are not"
