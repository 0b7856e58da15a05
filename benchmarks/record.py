"""All that was measured, as JSON: samples in seconds, with the machine and the versions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.document import Table, made_with
from benchmarks.measured import Measured


def write_json(
    path: Path, threads: int, rows: Mapping[str, Sequence[Measured]], tables: Mapping[str, Table]
) -> None:
    """Write the rows by group, and as texts the tables of what is not timed in turn.

    `threads` are those of the run; a case may have its own.
    """
    found = {
        "made": asdict(made_with()),
        "rows": [_row(name, row, threads) for name, group in rows.items() for row in group],
        "tables": {name: _texts(table) for name, table in tables.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _row(group: str, row: Measured, threads: int) -> dict[str, Any]:
    """One case; the ratio is what its limit is about, to the fastest rival that the limit names."""
    limit = row.case.limit
    return {
        "group": group,
        "problem": {**asdict(row.case.problem), "computed": row.case.problem.what},
        "density": row.density,
        "threads": row.case.threads or threads,
        "seconds": {name: list(timing.seconds) for name, timing in row.times.items()},
        "absent": dict(row.absent),
        "rival": row.rival.name,
        "ratio": asdict(row.found),
        "limit": asdict(limit) if limit.wanted else None,
        "met": row.met if limit.wanted else None,
    }


def _texts(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]
