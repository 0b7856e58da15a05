"""Tables for people: findings, plans, reports, timings and checks, as the command line prints them.

Names come from models and are printed without markup.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparsify.claims import Claim
from sparsify.costs import CostRow
from sparsify.doctor import Check
from sparsify.explain import explain, positions
from sparsify.plan import Decision, Plan
from sparsify.report import Report
from sparsify.site import Findings, Refusal, Site
from sparsify.timing import Timing, ratio
from sparsify.units import scaled
from sparsify.verification import Verification

Item = TypeVar("Item")


def show_findings(console: Console, findings: Findings) -> None:
    """Sites with their shape, then refusals with their reasons."""
    if findings.sites:
        columns = ("site", "heads", "head dim", "scale", "mask", "matcher")
        _table(console, columns, [_site_row(site) for site in findings.sites])
    show_refusals(console, findings.refusals)
    sites, left = len(findings.sites), len(findings.refusals)
    console.print(f"{sites} attention {_plural('site', sites)} found, {left} candidates left")


def show_site(console: Console, site: Site) -> None:
    """Everything about one site."""
    _table(console, ("site", site.name), explain(site))


def show_refusals(console: Console, refusals: Sequence[Refusal]) -> None:
    """Every candidate that was left, and why."""
    rows = _grouped(refusals, lambda r: (r.code, r.reason), lambda r: ", ".join(r.nodes))
    _table(console, ("left", "nodes", "code", "reason"), rows)


def show_plan(console: Console, plan: Plan) -> None:
    """Every decision."""
    _show_decisions(console, plan.decisions)
    _show_predicted(console, plan.decisions)


def show_report(console: Console, report: Report) -> None:
    """Decisions, refusals, the measured error, and where the file is."""
    _show_decisions(console, report.decisions)
    show_refusals(console, report.refusals)
    show_verification(console, report.verification)
    _show_predicted(console, report.decisions)
    kept = report.found - report.replaced
    console.print(
        f"{report.replaced} of {report.found} attention {_plural('site', report.found)} replaced, "
        f"{kept} kept, in {report.seconds:.1f} s"
    )
    if report.output is not None:
        console.print(Text(f"wrote {report.output}"))


def show_verification(console: Console, verification: Verification) -> None:
    """The error of every output."""
    if verification.skipped is not None:
        console.print(Text(f"not verified end to end: {verification.skipped}"))
        return
    source = {"random": "random stand-in inputs", "data": "your data"}[verification.inputs]
    columns = ("output", "relative L2", "cosine", "max abs")
    rows = [
        (error.name, f"{error.rel_l2:.2e}", f"{error.cosine:.6f}", f"{error.max_abs:.2e}")
        for error in verification.outputs
    ]
    _table(console, columns, rows, title=f"error against the original, on {source}")
    for error in verification.outputs:
        if error.non_finite:
            console.print(
                Text(f"{error.name}: {error.non_finite} values of the original are not finite")
            )
    if verification.seconds is not None:
        before, after = verification.seconds
        console.print(
            f"a run on these inputs took {scaled(before, 's')}, now takes {scaled(after, 's')}: "
            f"{before / after:.2f}x; `sparsify bench` measures more closely"
        )


def show_timings(console: Console, timings: Sequence[Timing]) -> None:
    """Median and spread of each model, and its time relative to the first."""
    rows = []
    for timing in timings:
        low, high = (f"{seconds * 1e3:.1f}" for seconds in timing.spread)
        rows.append(
            (
                timing.name,
                f"{timing.median * 1e3:.1f} ms",
                f"{low} - {high}",
                f"{ratio(timing, timings[0]):.3f}",
                f"{1 / ratio(timing, timings[0]):.2f}x",
            )
        )
    _table(console, ("model", "median", "spread (ms)", "time ratio", "speed-up"), rows)


def show_checks(console: Console, checks: Sequence[Check]) -> None:
    """Every check with its answer, and advice for what is wrong."""
    rows = [("ok" if check.good else "FAULT", check.name, check.answer) for check in checks]
    _table(console, ("", "check", "answer"), rows)
    for check in checks:
        if not check.good:
            console.print(Text(f"{check.name}: {check.advice}"))


def show_plugins(console: Console, rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Every plugin: kind, name, the distribution it comes from, and its options."""
    _table(console, ("kind", "name", "from", "options"), rows)


def _site_row(site: Site) -> tuple[str, ...]:
    heads = "?" if site.q_heads is None else str(site.q_heads)
    if site.kv_heads != site.q_heads:
        heads = f"{heads} over {site.kv_heads}"
    dim = "?" if site.head_dim is None else str(site.head_dim)
    where = [positions(site)] if positions(site) else []
    mask = "; ".join(where + ([site.mask] if site.mask else [])) or "-"
    return site.name, heads, dim, f"{site.scale:.4g}", mask, site.matcher


def _show_decisions(console: Console, decisions: Sequence[Decision]) -> None:
    rows = _grouped(decisions, _decision_row, lambda decision: decision.site)
    columns = ("sites", "name", "grade", "pattern", "residual", "density", "reason")
    _table(console, columns, rows)


def _show_predicted(console: Console, decisions: Sequence[Decision]) -> None:
    """The time that a device tells of the sites it was asked about; how many it was not."""
    told = [(d, d.predicted) for d in decisions if d.predicted is not None]
    silent = sum(d.pattern is not None and d.predicted is None for d in decisions)
    if told:
        seconds = sum(p.seconds if d.pattern else p.exact_seconds for d, p in told)
        exact = sum(p.exact_seconds for _, p in told)
        lengths = sorted({p.k_length for _, p in told})
        tokens = " to ".join(str(length) for length in dict.fromkeys((lengths[0], lengths[-1])))
        console.print(
            Text(
                f"predicted on {told[0][1].device}, {tokens} tokens: {scaled(seconds, 's')} for "
                f"{len(told)} {_plural('attention', len(told))}, {scaled(exact, 's')} with every "
                "score"
            )
        )
    if silent:
        console.print(
            f"no device was asked whether the pattern pays at {silent} {_plural('site', silent)}: "
            "the length is open (name one with --max-length) or what is kept depends on the input"
        )


def _grouped(
    items: Sequence[Item],
    row: Callable[[Item], tuple[str, ...]],
    name: Callable[[Item], str],
) -> list[tuple[str, ...]]:
    """One line for neighbours that differ by name alone: how many, first and last, the rest."""
    rows = []
    for cells, group in itertools.groupby(items, key=row):
        names = [name(item) for item in group]
        span = names[0] if len(names) == 1 else f"{names[0]}\n... {names[-1]}"
        rows.append((str(len(names)), span, *cells))
    return rows


def _decision_row(decision: Decision) -> tuple[str, ...]:
    density = "-" if decision.density is None else f"{decision.density:.3f}"
    status = decision.grade if decision.replaced else decision.status
    residual = "-" if decision.residual == "none" else decision.residual
    return (
        status or "-",
        decision.pattern or "-",
        residual,
        density,
        decision.reason,
    )


def show_devices(console: Console, rows: Sequence[tuple[str, str, str]]) -> None:
    """Every device: its name, the distribution it comes from, and how it answers."""
    _table(console, ("device", "from", "answers"), rows)


def show_costs(console: Console, rows: Sequence[CostRow]) -> None:
    """Time and energy of all attentions of a model, and when selecting keys pays."""
    shares = [f"{density:g}" for density in rows[0].densities]
    columns = ("device", "tokens", "dense", "energy", "of the model", *shares, "pays below")
    _table(console, columns, [_cost_row(row) for row in rows])
    words = ["dense: all attentions of one run, every permitted score computed"]
    if shares:
        words.append(
            f"a number such as {shares[0]}: the time with that share of the keys, chosen in the "
            "call, relative to dense"
        )
    words.append("pays below: the share from which selecting is faster")
    words.append("of the model: beside its products with weights, nothing else of it is counted")
    console.print(
        f"{'; '.join(words)}. Batch {rows[0].batch}, {rows[0].dtype}. Energies are estimates."
    )


def show_claims(console: Console, rows: Sequence[tuple[str, Claim]]) -> None:
    """Published figures beside ours, paper by paper, with what is reconstructed."""
    for device, paper in dict.fromkeys((device, claim.paper) for device, claim in rows):
        console.print(Text(f"{paper}, as the device {device}"), style="bold")
        for claim in (c for d, c in rows if (d, c.paper) == (device, paper)):
            console.print(
                Text(f"  {claim.quantity}: ours {claim.ours}, published {claim.published}")
            )
            console.print(Text(f"    setting: {claim.setting}"))
            console.print(Text(f"    reconstructed: {claim.reconstructed}"))


def _cost_row(row: CostRow) -> tuple[str, ...]:
    ratios = (f"{spent.seconds / row.dense.seconds:.3f}" for spent in row.sparse)
    share = "-" if row.share is None else f"{row.share:.1%}"
    pays = f"{row.pays_below:.2f}" if row.pays_below else "never"
    seconds, joules = scaled(row.dense.seconds, "s"), scaled(row.dense.joules, "J")
    return (row.device, str(row.length), seconds, joules, share, *ratios, pays)


def _table(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
