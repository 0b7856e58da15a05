"""The whole way from one file to another: load, find, plan, apply, save, verify, report."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsify.devices import device_named
from sparsify.errors import SparsifyError
from sparsify.feeds import Feeds, load_data, stand_ins
from sparsify.find import find_sites
from sparsify.model import Model, load
from sparsify.plan import Plan, Request, make_plan
from sparsify.report import Report, make_report
from sparsify.rewrite import apply_plan
from sparsify.save import Staged, check_output, staged
from sparsify.site import Findings
from sparsify.spec import parse_spec
from sparsify.verification import Verification, noise_floor, run_model, verification_of

log = logging.getLogger(__name__)

Progress = Callable[[str], None]
"""Told the name of each step as it begins."""

STEPS = ("reading", "finding attention", "planning", "rewriting", "verifying")

ROUNDING = 1e-3
"""Relative L2 error up to which an exact rewrite counts as rounding without a closer look."""


@dataclass(frozen=True)
class Trial:
    """What to verify on: data files, or stand-ins with these sizes; `enabled` False skips it."""

    data: tuple[str | Path, ...] = ()
    dims: Mapping[str, int] | None = None
    shapes: Mapping[str, Sequence[int]] | None = None
    enabled: bool = True
    library: bool = True

    @property
    def inputs(self) -> str:
        """The word for a report."""
        return "data" if self.data else "random"

    @property
    def chosen(self) -> bool:
        """Whether the user said what to run on; then it must work."""
        return bool(self.data or self.dims or self.shapes)

    def feeds(self, model: Model) -> list[Feeds]:
        """The sets of inputs.

        Raises:
            SparsifyError: data, dims or shapes do not fit the model.
        """
        if self.data:
            return load_data(model, self.data)
        return [stand_ins(model, self.dims, self.shapes)]


def optimize(
    model: str | Path,
    output: str | Path | None,
    *,
    patterns: Sequence[str] = (),
    residual: str = "none",
    max_length: int | None = None,
    device: str = "host",
    weights: str = "copy",
    trial: Trial | None = None,
    required: int | str = 1,
    progress: Progress = lambda step: None,
) -> Report:
    """Replace the attentions of a model and write the result, verified, to `output`.

    Without `patterns` every attention is replaced exactly: the numbers stay, to rounding. Patterns
    are written `[SITE_GLOB=]NAME[:key=value,...]`; the last that fits a site holds. `residual` says
    what keys contribute that a pattern leaves out: "none", "mean" or "iso". `max_length` is the
    longest sequence, in tokens, that grids are made for. With fewer than `required` replaced sites
    ("all": every one found), or with `output` None, no file is written and the report's `output` is
    None.

    Raises:
        SparsifyError: bad input or options, or a result that does not agree with the original.
    """
    start, trial = time.monotonic(), trial or Trial()
    progress(STEPS[0])
    loaded = load(model)
    target = None if output is None else Path(output)
    if target is not None:
        check_output(loaded, target)
    if trial.chosen:
        trial.feeds(loaded)  # a mistake in them should not cost the time until verification
    progress(STEPS[1])
    findings = find_sites(loaded)
    progress(STEPS[2])
    request = Request(tuple(map(parse_spec, patterns)), residual, max_length)
    plan = make_plan(loaded, findings, request, device_named(device))
    needed = max(1, len(findings.sites)) if required == "all" else int(required)
    write = target is not None and sum(d.replaced for d in plan.decisions) >= needed
    return _carry_out(
        loaded, findings, plan, target if write else None, weights, trial, start, progress
    )


def apply(
    model: str | Path,
    plan: Plan,
    output: str | Path,
    *,
    weights: str = "copy",
    trial: Trial | None = None,
    progress: Progress = lambda step: None,
) -> Report:
    """Carry out a plan made earlier for the same graph; see `optimize`.

    Raises:
        SparsifyError: the plan is for another graph, or as for `optimize`.
    """
    start, trial = time.monotonic(), trial or Trial()
    progress(STEPS[0])
    loaded, target = load(model), Path(output)
    check_output(loaded, target)
    if trial.chosen:
        trial.feeds(loaded)
    progress(STEPS[1])
    findings = find_sites(loaded)
    return _carry_out(loaded, findings, plan, target, weights, trial, start, progress)


def _carry_out(
    model: Model,
    findings: Findings,
    plan: Plan,
    output: Path | None,
    weights: str,
    trial: Trial,
    start: float,
    progress: Progress,
) -> Report:
    verification = Verification(trial.inputs, skipped="no file was written")
    if output is not None:
        progress(STEPS[3])
        result = apply_plan(model, findings.sites, plan)
        with staged(result, output, model, weights) as stage:
            progress(STEPS[4])
            verification = _verified(model, findings, plan, stage, trial)
            stage.commit()
    seconds = time.monotonic() - start
    return make_report(model.path, output, plan, findings, verification, seconds)


def _verified(
    model: Model, findings: Findings, plan: Plan, stage: Staged, trial: Trial
) -> Verification:
    """Measure the written file; refuse to release one that claims more than it holds."""
    reason = _reason_to_skip(stage, trial)
    if reason is not None:
        return Verification(trial.inputs, skipped=reason)
    try:
        feeds = trial.feeds(model)
        wanted = run_model(model.path, feeds, library=trial.library, timed=trial.chosen)
    except SparsifyError as error:
        if trial.chosen:
            raise
        return Verification(trial.inputs, skipped=str(error))
    got = run_model(stage.path, feeds, library=trial.library, timed=trial.chosen)
    found = verification_of(trial.inputs, wanted, got)
    exact = all(decision.grade in ("exact", None) for decision in plan.decisions)
    if exact and found.worst > ROUNDING:
        reason = _known_difference(findings, plan, trial)
        if reason is None:
            _check_rounding(model, found, feeds)
        else:
            log.warning("%s (see the report): the error of %.1e includes it", reason, found.worst)
    return found


def _known_difference(findings: Findings, plan: Plan, trial: Trial) -> str | None:
    """What an exact result does otherwise than the original by design, at a replaced site."""
    replaced = {(d.scope, d.site) for d in plan.decisions if d.replaced}
    sites = [site for site in findings.sites if (site.scope, site.name) in replaced]
    if any(site.unquantized for site in sites):
        return "scores and probabilities are not quantised any more"
    # stand-ins leave every row a key, so that only data can meet this
    if trial.data and any("empty_rows" in note for site in sites for note in site.notes):
        return "rows without any key may be other numbers than in the original"
    return None


def _check_rounding(model: Model, found: Verification, feeds: list[Feeds]) -> None:
    """An exact result may differ by what the original differs from itself, and no more."""
    floor = noise_floor(model.path, feeds)
    if found.worst > 2 * floor:
        raise SparsifyError(
            f"{model.path}: the exact result differs by {found.worst:.1e} (relative L2), the "
            f"original from itself by {floor:.1e}; nothing was written, please report the model"
        )
    log.warning(
        "the original differs from itself by %.1e at another optimisation level (relative L2)",
        floor,
    )


def _reason_to_skip(stage: Staged, trial: Trial) -> str | None:
    if not trial.enabled:
        return "not asked for"
    if trial.data:
        return None
    needed = 3 * sum(file.stat().st_size for file, _ in stage.files)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > free // 2:
        return f"needs about {needed >> 20} MiB of memory, {free >> 20} MiB are free"
    return None
