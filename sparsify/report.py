"""What happened to a model, as data: the stable JSON that tools read."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sparsify.errors import SparsifyError
from sparsify.plan import Decision, Plan
from sparsify.save import write_text
from sparsify.site import Findings, Refusal
from sparsify.verification import Verification

REPORT_VERSION = 1


@dataclass(frozen=True)
class Report:
    """The result of one `optimize`; `output` is None when no file was written."""

    model: Path
    output: Path | None
    decisions: tuple[Decision, ...]
    refusals: tuple[Refusal, ...]
    verification: Verification
    seconds: float

    @property
    def found(self) -> int:
        """Number of attentions found."""
        return len(self.decisions)

    @property
    def replaced(self) -> int:
        """Number of attentions replaced."""
        return sum(decision.replaced for decision in self.decisions)

    def to_json(self) -> dict[str, object]:
        """The stable form of `--report FILE.json`."""
        return {
            "version": REPORT_VERSION,
            "model": str(self.model),
            "output": None if self.output is None else str(self.output),
            "found": self.found,
            "replaced": self.replaced,
            "sites": [_site_json(decision) for decision in self.decisions],
            "refusals": [refusal.to_json() for refusal in self.refusals],
            "verify": self.verification.to_json(),
            "seconds": self.seconds,
        }


def findings_json(model: Path, findings: Findings) -> dict[str, object]:
    """The stable form of `inspect --json`."""
    return {
        "model": str(model),
        "sites": [site.to_json() for site in findings.sites],
        "refusals": [refusal.to_json() for refusal in findings.refusals],
    }


def make_report(
    model: Path,
    output: Path | None,
    plan: Plan,
    findings: Findings,
    verification: Verification,
    seconds: float,
) -> Report:
    """Put together what the steps found out."""
    return Report(model, output, plan.decisions, findings.refusals, verification, round(seconds, 3))


def write_reports(report: Report, paths: Sequence[str | Path]) -> None:
    """Write the report to each path; the suffix chooses the form (`.json`).

    Raises:
        SparsifyError: unknown suffix, or a path that cannot be written.
    """
    for path in map(Path, paths):
        check_report_path(path)
        write_text(path, json.dumps(report.to_json(), indent=2) + "\n")


def check_report_path(path: str | Path) -> None:
    """Refuse a report that cannot be written, before any work is done."""
    if Path(path).suffix != ".json":
        raise SparsifyError(f"{path}: a report is written as .json; use that suffix")
    if not Path(path).parent.is_dir():
        raise SparsifyError(
            f"{path}: directory {Path(path).parent} does not exist; create it first"
        )


def _site_json(decision: Decision) -> dict[str, object]:
    return {
        "name": decision.site,
        "status": decision.status,
        "grade": decision.grade,
        "pattern": decision.pattern,
        "residual": decision.residual,
        "density": decision.density,
        "reason": decision.reason,
        "predicted": None if decision.predicted is None else asdict(decision.predicted),
    }
