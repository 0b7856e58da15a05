"""Everything CI checks, in the order in which faults are cheapest to see: `python -m tests`."""

import subprocess
import sys

CHECKS = (
    ("ruff", "format", "--check", "."),
    ("ruff", "check", "."),
    ("mypy",),
    ("lint-imports",),
    ("pytest", "-q", "-n", "2"),
)

for command in CHECKS:
    print("$", " ".join(command), flush=True)
    result = subprocess.run(command, check=False)
    if result.returncode:
        sys.exit(result.returncode)
