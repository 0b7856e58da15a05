"""The decisions about a model as plain data: which sites are replaced, how, and why not."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sparsify.emit import RESIDUALS, Choice, is_dynamic
from sparsify.errors import SparsifyError
from sparsify.explain import positions
from sparsify.grids import grid_of
from sparsify.model import Model
from sparsify.pattern import Pattern
from sparsify.plugins import Device, unknown
from sparsify.predicted import Predicted, predicted
from sparsify.site import Findings, Site
from sparsify.site_work import exact_work, grid_at
from sparsify.spec import PatternSpec, make_pattern, parse_spec
from sparsify.units import scaled

PLAN_VERSION = 1
GRADES = ("exact", "calibrated", "requested")


@dataclass(frozen=True)
class Decision:
    """What happens to one site.

    `status` is "replaced" or "kept"; `grade` one of `GRADES` (None when kept). `pattern` is written
    as on the command line. `density` is the share of scores that the pattern keeps, where it can be
    told without running (1.0 for exact sites). `reason` says why. `predicted` is what a device told
    of the pattern that was asked for, also where it is not used.
    """

    site: str
    scope: str
    status: str
    grade: str | None
    pattern: str | None
    residual: str
    density: float | None
    reason: str
    predicted: Predicted | None = None

    @property
    def replaced(self) -> bool:
        """Whether the site is replaced."""
        return self.status == "replaced"


@dataclass(frozen=True)
class Plan:
    """All decisions for one graph; `graph` is the hash of that graph without its weights."""

    graph: str
    decisions: tuple[Decision, ...]
    max_length: int | None = None
    version: int = PLAN_VERSION

    def to_json(self) -> str:
        """The plan as JSON that `from_json` reads back unchanged."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> "Plan":
        """Read a plan.

        Raises:
            SparsifyError: the text is not a plan, or one of another version.
        """
        try:
            data = json.loads(text)
            version = data["version"]
            decisions = tuple(_decision(item) for item in data["decisions"])
            plan = Plan(data["graph"], decisions, data["max_length"], version)
            if not isinstance(plan.max_length, int | None):
                raise TypeError(f"max_length is {plan.max_length!r}")
        except (ValueError, KeyError, TypeError) as error:
            raise SparsifyError(f"not a plan ({error}); write one with `sparsify plan`") from error
        if version != PLAN_VERSION:
            raise SparsifyError(
                f"plan version {version} is not {PLAN_VERSION}; make the plan again"
            )
        _check_decisions(plan)
        return plan


def read_plan(path: str | Path) -> Plan:
    """Read a plan file.

    Raises:
        SparsifyError: the file cannot be read or holds no plan.
    """
    try:
        return Plan.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SparsifyError(f"{path}: cannot be read ({error}); check the path") from error
    except SparsifyError as error:
        raise SparsifyError(f"{path}: {error}") from error


@dataclass(frozen=True)
class Request:
    """What the user asks for: patterns by site, and what left-out keys contribute."""

    patterns: tuple[PatternSpec, ...] = ()
    residual: str = "none"
    max_length: int | None = None


def make_plan(
    model: Model, findings: Findings, request: Request, device: Device | None = None
) -> Plan:
    """Decide about every site.

    A site without a pattern is replaced by the exact operator. With a device, a pattern that is
    predicted not to pay gives way to the exact operator, and the reason says so; the device is
    asked where lengths are known, from the graph or from the longest that the request names.

    Raises:
        SparsifyError: unknown pattern, option or residual, a pattern that fits no site, or a bad
            grid.
    """
    if request.residual not in RESIDUALS:
        raise SparsifyError(unknown("residual", request.residual, RESIDUALS))
    for spec in request.patterns:
        make_pattern(spec)
        if findings.sites and not any(spec.matches(site.name) for site in findings.sites):
            names = ", ".join(site.name for site in findings.sites[:3])
            raise SparsifyError(
                f"pattern {spec}: no site matches {spec.sites!r}; sites are {names}"
            )
    dtype = _common_type(findings.sites)
    decide = _decider(request, device, dtype)
    return Plan(
        model.graph_hash(), tuple(decide(site) for site in findings.sites), request.max_length
    )


def choice_for(decision: Decision, max_length: int | None) -> Choice:
    """The decision as objects: the pattern built, ready to be written."""
    pattern = None if decision.pattern is None else make_pattern(parse_spec(decision.pattern))
    return Choice(pattern, decision.residual, max_length)


def _decider(
    request: Request, device: Device | None, dtype: int | None
) -> Callable[[Site], Decision]:
    def decide(site: Site) -> Decision:
        if site.element_type != dtype:
            return _kept(site, "mixed_dtype: other sites of the model have another float type")
        spec = next((s for s in reversed(request.patterns) if s.matches(site.name)), None)
        exact = Decision(site.name, site.scope, "replaced", "exact", None, "none", 1.0, _why(site))
        if spec is None:
            return exact
        return _requested(site, exact, spec, request, device)

    return decide


def _requested(
    site: Site, exact: Decision, spec: PatternSpec, request: Request, device: Device | None
) -> Decision:
    pattern, residual = make_pattern(spec), request.residual
    reason = "the pattern was named by the user, not calibrated"
    if residual == "iso" and site.softcap:
        residual, reason = "mean", f"{reason}; iso is not defined with a softcap, so mean"
    density = known_density(pattern, site)
    told = None
    if device is not None:
        told = predicted(device, site, pattern, residual, request.max_length)
    if told is not None and not told.pays:
        return replace(exact, reason=_doubt(told), predicted=told)
    return replace(
        exact,
        grade="requested",
        pattern=str(spec),
        residual=residual,
        density=density,
        reason="; ".join((reason, *site.notes)),
        predicted=told,
    )


_ALL = "every score is computed"


def _why(site: Site) -> str:
    allowed = positions(site)
    what = f"every score that is allowed is computed ({allowed})" if allowed else _ALL
    return "; ".join((what, *site.notes))


def _kept(site: Site, reason: str) -> Decision:
    return Decision(site.name, site.scope, "kept", None, None, "none", None, reason)


def _common_type(sites: Sequence[Site]) -> int | None:
    kinds = [site.element_type for site in sites]
    return max(set(kinds), key=kinds.count, default=None)


def known_density(pattern: Pattern, site: Site) -> float | None:
    """The kept share of the permitted scores, where pattern and lengths fix it before running."""
    density = getattr(pattern, "density", None)
    if is_dynamic(pattern):
        if isinstance(density, tuple):
            return sum(density) / len(density)
        return density
    exact = exact_work(site)
    if exact is None:
        return None
    grid = grid_at(pattern, site, exact)
    kept = grid_of(pattern, grid) & grid.permitted()  # type: ignore[arg-type]
    return float(kept.mean() / grid.permitted().mean())


def _doubt(told: Predicted) -> str:
    """Why the exact operator is the better choice."""
    return (
        f"kept dense: on {told.device} the pattern is predicted to take "
        f"{scaled(told.seconds, 's')} a call, computing every score "
        f"{scaled(told.exact_seconds, 's')}"
    )


_TEXT, _OPTIONAL = (str,), (str, type(None))
_TYPES: dict[str, tuple[type, ...]] = {
    "site": _TEXT,
    "scope": _TEXT,
    "status": _TEXT,
    "grade": _OPTIONAL,
    "pattern": _OPTIONAL,
    "residual": _TEXT,
    "density": (float, int, type(None)),
    "reason": _TEXT,
}


def _decision(item: dict[str, Any]) -> Decision:
    for name, kinds in _TYPES.items():
        if not isinstance(item[name], kinds):
            raise TypeError(f"{name} is {item[name]!r}")
    told = item.get("predicted")
    return Decision(**{**item, "predicted": None if told is None else Predicted.from_json(told)})


def _check_decisions(plan: Plan) -> None:
    for decision in plan.decisions:
        if decision.status not in ("replaced", "kept"):
            raise SparsifyError(f"site {decision.site}: status {decision.status!r} is not known")
        if decision.residual not in RESIDUALS:
            known: Any = ", ".join(RESIDUALS)
            raise SparsifyError(f"site {decision.site}: residual is not one of {known}")
        if decision.replaced and decision.grade not in GRADES:
            raise SparsifyError(f"site {decision.site}: grade {decision.grade!r} is not known")
