"""Finds models and data that stand inside installed packages, without importing the packages."""

from importlib import metadata
from pathlib import Path

EXTRAS = "pip install '.[cpu,demo,dev]'"


def packaged(distribution: str, name: str, install: str = EXTRAS) -> Path:
    """Find a file by name inside a distribution, which the command `install` brings.

    Raises:
        SystemExit: the distribution is not installed or lacks the file; says what to install.
    """
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise SystemExit(f"{name} of {distribution} is not here; run: {install}")
