"""Tables for the terminal and for Markdown, with the machine and the command that made them."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

MET, MISSED = "met", "MISSED"

_PACKAGES = ("onnx-sparsify", "onnxruntime", "onnx", "numpy")
_OPTIONAL = ("torch", "openvino")
"""Packages that are named where they were used."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else 170)


@dataclass(frozen=True)
class Table:
    """A table of finished texts; without a title it is the only one of its section."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        body = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return f"### {self.title}\n\n{body}\n" if self.title else f"{body}\n"


def show(table: Table) -> None:
    """Print a table."""
    drawn = RichTable(title=table.title, title_justify="left")
    for column in table.columns:
        drawn.add_column(column)
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    console.print(drawn)


def verdict(met: bool) -> str:
    """Whether a target is met, as a cell."""
    return MET if met else MISSED


def tally(table: Table) -> tuple[int, int]:
    """How many of a table's targets are met, and how many it has."""
    cells = [cell for row in table.rows for cell in row if cell in (MET, MISSED)]
    return cells.count(MET), len(cells)


def duration(seconds: float) -> str:
    """A time with a unit that suits it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def plural(count: int, word: str) -> str:
    """A count with its word: "1 thread", "2 threads"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def write_section(path: Path, key: str, title: str, tables: Sequence[Table], note: str) -> None:
    """Put the tables into a Markdown file, in place of what this benchmark wrote there before."""
    start, end = f"<!-- {key} -->\n", f"<!-- end {key} -->\n"
    parts = [f"## {title}", note, made_by(), *(table.markdown() for table in tables)]
    section = start + "\n\n".join(part.strip() for part in parts) + "\n" + end
    text = path.read_text(encoding="utf-8") if path.exists() else "# Measured speed\n\n"
    before, found, rest = text.partition(start)
    after = rest.partition(end)[2] if found else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((before if found else text.rstrip("\n") + "\n\n") + section + after, "utf-8")


def made_by() -> str:
    """When, on what machine, with which versions and by what command."""
    made = made_with()
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    return (
        f"{made.date}, {made.processor}, {made.cpus} CPUs, {made.system}; "
        f"Python {made.python}, {versions}; `{made.command}`"
    )


@dataclass(frozen=True)
class Made:
    """What a measurement was made with."""

    date: str
    processor: str
    cpus: int | None
    system: str
    python: str
    versions: Mapping[str, str]
    command: str


def made_with() -> Made:
    """The day, the machine, the versions and the command of this run."""
    packages = [*_PACKAGES, *(name for name in _OPTIONAL if name in sys.modules)]
    module = getattr(sys.modules["__main__"].__spec__, "name", "")
    return Made(
        date=str(date.today()),
        processor=_processor(),
        cpus=os.cpu_count(),
        system=platform.system(),
        python=platform.python_version(),
        versions={name: importlib.metadata.version(name) for name in packages},
        command=" ".join(["python -m", module, *sys.argv[1:]]),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)
    }
    flags = facts.get("flags", "").split()
    isa = next((name for name in ("avx512f", "avx2", "neon") if name in flags), platform.machine())
    return f"{facts.get('model name', platform.machine())} ({isa})"
