"""The command line: `sparsify MODEL -o OUT`, and the commands that look, plan, check and time.

Exit codes: 0 done, 1 error (one line), 2 usage, 3 fewer sites replaced than required.
"""

import dataclasses
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.logging import RichHandler

from sparsify.errors import SparsifyError
from sparsify.options import (
    DTYPES,
    MODEL,
    NO_LIBRARY,
    OUTPUT,
    QUIET,
    WEIGHTS,
    check_patterns,
    err,
    numbers_between,
    pattern_options,
    read_required,
    read_trial,
    steps,
    trial_options,
)

TOO_FEW = 3
"""Exit code when fewer sites were replaced than required."""

out = Console(highlight=False)


class Commands(click.Group):
    """A group in which whatever is not a command is a model for `optimize`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Read `sparsify MODEL ...` as `sparsify optimize MODEL ...`."""
        if self.get_command(ctx, args[0]) is None:
            args = ["optimize", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let options of `optimize` stand before the model."""
        if args and args[0].startswith("-") and args[0] not in ("--help", "--version"):
            args = ["optimize", *args]
        return super().parse_args(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onnx-sparsify")
def cli() -> None:
    """Make the attention of ONNX models sparse.

    `sparsify MODEL -o OUT` finds every attention in MODEL, replaces it and verifies the result.
    """


def main() -> None:
    """Run the command line; a user's error becomes one line and exit code 1."""
    handler = RichHandler(console=err, show_time=False, show_path=False, markup=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    try:
        cli.main(prog_name="sparsify")
    except SparsifyError as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        sys.exit(1)


@cli.command()
@MODEL
@OUTPUT
@pattern_options
@trial_options
@WEIGHTS
@NO_LIBRARY
@click.option("--no-verify", is_flag=True, help="Do not run the result end to end.")
@click.option("--report", "reports", multiple=True, metavar="FILE.json", help="Write a report.")
@click.option("--require", default="1", metavar="N|all", help="Fewest sites that must be replaced.")
@click.option("--allow-noop", is_flag=True, help="Write the output even if nothing is replaced.")
@click.option("--dry-run", is_flag=True, help="Say what would happen; write no model.")
@QUIET
def optimize(
    model: Path,
    output: Path | None,
    patterns: tuple[str, ...],
    exact: bool,
    residual: str,
    max_length: int | None,
    device: str,
    data: tuple[Path, ...],
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    weights: str,
    no_library: bool,
    no_verify: bool,
    reports: tuple[str, ...],
    require: str,
    allow_noop: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Replace the attentions of MODEL and write the verified result (the default command)."""
    from sparsify import api
    from sparsify.render import show_report
    from sparsify.report import check_report_path, write_reports

    if output is None and not dry_run:
        raise click.UsageError("give -o OUT, or --dry-run")
    check_patterns(patterns, exact, residual)
    for path in reports:
        check_report_path(path)
    required = read_required(require, allow_noop)
    with steps(quiet, len(api.STEPS)) as progress:
        report = api.optimize(
            model,
            None if dry_run else output,
            patterns=patterns,
            residual=residual,
            max_length=max_length,
            device=device,
            weights=weights,
            trial=read_trial(data, dims, shapes, not no_library, not no_verify),
            required=required,
            progress=progress,
        )
    if not quiet:
        show_report(out, report)
    write_reports(report, reports)
    if report.replaced < (max(1, report.found) if required == "all" else int(required)):
        click.echo(
            f"{model}: {report.replaced} attention sites replaced, {require} required; "
            "no file was written (see `sparsify inspect`, or --allow-noop)",
            err=True,
        )
        sys.exit(TOO_FEW)


@cli.command()
@MODEL
@click.option("--json", "as_json", is_flag=True, help="Print JSON for tools.")
@click.option("--explain", "name", metavar="SITE", help="All about one site: nodes, form, proof.")
@click.option("--device", "names", help="Devices whose time and energy to add, with commas.")
@click.option("--seq", default="4k", help="Lengths in tokens for --device.")
def inspect(model: Path, as_json: bool, name: str | None, names: str | None, seq: str) -> None:
    """List every attention in MODEL, and every candidate left alone with the reason."""
    from sparsify.costs import costs_json
    from sparsify.explain import site_named
    from sparsify.find import find_sites
    from sparsify.model import load
    from sparsify.render import show_costs, show_findings, show_site
    from sparsify.report import findings_json
    from sparsify.site import Findings

    loaded = load(model)
    with steps(as_json, 1) as progress:
        progress("finding attention")
        findings = find_sites(loaded)
    rows = _costs(loaded, findings, names, seq) if names and findings.sites else []
    if name is not None:
        findings = Findings((site_named(findings, name),))
    if as_json:
        data = findings_json(model, findings)
        if names is not None:
            data = {**data, "costs": costs_json(rows)}
        click.echo(json.dumps(data, indent=2))
    elif name is not None:
        show_site(out, findings.sites[0])
    else:
        show_findings(out, findings)
    if rows and not as_json:
        show_costs(out, rows)


@cli.command()
@MODEL
@OUTPUT
@pattern_options
def plan(
    model: Path,
    output: Path | None,
    patterns: tuple[str, ...],
    exact: bool,
    residual: str,
    max_length: int | None,
    device: str,
) -> None:
    """Decide about every site of MODEL; -o PLAN.json keeps the decisions for `apply`."""
    from sparsify.devices import device_named
    from sparsify.find import find_sites
    from sparsify.model import load
    from sparsify.plan import Request, make_plan
    from sparsify.render import show_plan
    from sparsify.save import write_text
    from sparsify.spec import parse_spec

    check_patterns(patterns, exact, residual)
    loaded = load(model)
    request = Request(tuple(map(parse_spec, patterns)), residual, max_length)
    with steps(False, 2) as progress:
        progress("finding attention")
        findings = find_sites(loaded)
        progress("planning")
        made = make_plan(loaded, findings, request, device_named(device))
    show_plan(out, made)
    if output is not None:
        write_text(output, made.to_json())


@cli.command()
@MODEL
@click.argument("plan_file", metavar="PLAN.json", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The file to write."
)
@trial_options
@WEIGHTS
@NO_LIBRARY
@QUIET
def apply(
    model: Path,
    plan_file: Path,
    output: Path,
    data: tuple[Path, ...],
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    weights: str,
    no_library: bool,
    quiet: bool,
) -> None:
    """Carry out a plan made by `sparsify plan` for the same MODEL."""
    from sparsify import api
    from sparsify.plan import read_plan
    from sparsify.render import show_report

    made = read_plan(plan_file)
    trial = read_trial(data, dims, shapes, not no_library)
    with steps(quiet, len(api.STEPS)) as progress:
        report = api.apply(model, made, output, weights=weights, trial=trial, progress=progress)
    if not quiet:
        show_report(out, report)


@cli.command()
@click.argument("original", type=click.Path(path_type=Path))
@click.argument("changed", type=click.Path(path_type=Path))
@trial_options
@NO_LIBRARY
def verify(
    original: Path,
    changed: Path,
    data: tuple[Path, ...],
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    no_library: bool,
) -> None:
    """Run ORIGINAL and CHANGED on the same inputs and print the error of every output."""
    from sparsify import verification
    from sparsify.model import load
    from sparsify.render import show_verification

    trial = read_trial(data, dims, shapes, not no_library)
    loaded = load(original)
    load(changed)
    with steps(False, 1) as progress:
        progress("verifying")
        found = verification.verify(
            original,
            changed,
            trial.feeds(loaded),
            inputs=trial.inputs,
            library=trial.library,
            timed=trial.chosen,
        )
    show_verification(out, found)


@cli.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@trial_options
@NO_LIBRARY
@click.option("--pairs", default=7, type=click.IntRange(min=1), help="Counted rounds.")
@click.option("--threads", type=click.IntRange(min=1), help="Intra-op threads.")
def bench(
    models: tuple[Path, ...],
    data: tuple[Path, ...],
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    no_library: bool,
    pairs: int,
    threads: int | None,
) -> None:
    """Time models side by side, interleaved; ratios are against the first."""
    from sparsify import timing
    from sparsify.model import load
    from sparsify.render import show_timings

    loaded = [load(model) for model in models]
    feeds = read_trial(data, dims, shapes).feeds(loaded[0])[0]
    with steps(False, pairs + 1) as progress:
        progress("warming up")
        timings = timing.bench(
            models,
            feeds,
            pairs=pairs,
            threads=threads,
            library=not no_library,
            progress=lambda done: progress(f"round {done} of {pairs}"),
        )
    show_timings(out, timings)


@cli.command()
@MODEL
@click.option(
    "--device", "names", default="host", show_default=True, help="Devices, with commas between."
)
@click.option(
    "--seq",
    default="1k..16k",
    show_default=True,
    help="Lengths in tokens: 1k..64k doubles, or 512,3k.",
)
@click.option(
    "--density",
    default="0.1,0.3",
    show_default=True,
    help="Shares of the keys: 0.05..1, or 0.1,0.5.",
)
@click.option("--dtype", type=click.Choice(DTYPES), help="In place of the model's.")
@click.option("--json", "as_json", is_flag=True, help="Print data instead of a table.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw to .svg or .png.")
def cost(
    model: Path,
    names: str,
    seq: str,
    density: str,
    dtype: str | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Predict time and energy of MODEL's attentions on devices, by length and density."""
    from sparsify.cost_plot import check_picture, draw_costs
    from sparsify.costs import costs_json
    from sparsify.find import find_sites
    from sparsify.model import load
    from sparsify.render import show_costs

    if output is not None:
        check_picture(output)
    loaded = load(model)
    with steps(as_json, 2) as progress:
        progress("finding attention")
        findings = find_sites(loaded)
        progress("asking the devices")
        rows = _costs(loaded, findings, names, seq, density, dtype)
    if as_json:
        click.echo(json.dumps(costs_json(rows), indent=2))
    else:
        show_costs(out, rows)
    if output is not None:
        draw_costs(rows, output)
        click.echo(f"wrote {output}", err=as_json)


@cli.command()
@click.argument("pattern")
@click.option("--length", default=1024, type=click.IntRange(min=1), help="Tokens to draw.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write an SVG picture.")
def show(pattern: str, length: int, output: Path | None) -> None:
    """Draw PATTERN (NAME:key=value,...): which blocks of the score matrix it keeps."""
    from sparsify.draw import EXAMPLE_NOTE, draw_svg, draw_text, pattern_grid
    from sparsify.emit import is_dynamic
    from sparsify.pattern import Grid
    from sparsify.save import write_text
    from sparsify.spec import make_pattern, parse_spec

    made = make_pattern(parse_spec(pattern))
    heads = 4 if is_dynamic(made) else 1
    grid = Grid(heads, heads, length, length, made.q_block, made.k_block)
    masks = pattern_grid(made, grid)
    click.echo(f"{pattern}: {length} tokens, {masks.mean():.1%} of the blocks kept")
    click.echo(draw_text(masks[0]))
    if is_dynamic(made):
        click.echo(EXAMPLE_NOTE)
    if output is not None:
        write_text(output, draw_svg(masks, pattern))


@cli.command()
def plugins() -> None:
    """List every plugin, the distribution it comes from, and its options."""
    from sparsify import plugins as registry
    from sparsify.render import show_plugins

    show_plugins(out, list(_plugin_rows(registry)))


@cli.command()
@click.option("--calibrate", is_flag=True, help="Measure this machine again.")
def devices(calibrate: bool) -> None:
    """List the devices; --calibrate measures those that answer by measuring."""
    from sparsify import plugins as registry
    from sparsify.render import show_devices

    rows = []
    for name, device in registry.every("devices"):
        measures = hasattr(device, "calibrate")
        told = "measured on this machine" if measures else _summary(device)
        if measures and calibrate:
            told = f"measured now, kept in {device.calibrate()}"
        rows.append((name, registry.owner("devices", name), told))
    show_devices(out, rows)


def _summary(device: Any) -> str:
    summary = getattr(device, "summary", None)
    return "by its formula" if summary is None else str(summary())


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print data instead of text.")
def claims(as_json: bool) -> None:
    """Print what papers published about their machines beside what our models of them say."""
    from sparsify.claims import all_claims, claims_json
    from sparsify.render import show_claims

    rows = all_claims()
    if as_json:
        click.echo(json.dumps(claims_json(rows), indent=2))
    else:
        show_claims(out, rows)


@cli.command()
def doctor() -> None:
    """Check this installation, and say what each fault means."""
    from sparsify.doctor import examine
    from sparsify.render import show_checks

    checks = examine()
    show_checks(out, checks)
    if not all(check.good for check in checks):
        sys.exit(1)


def _plugin_rows(registry: Any) -> Iterator[tuple[str, str, str, str]]:
    for kind in registry.KINDS:
        for name in registry.names(kind):
            plugin = registry.get(kind, name)
            fields = dataclasses.fields(plugin) if kind == "patterns" else ()
            options = ", ".join(f"{f.name}={f.default}" for f in fields)
            yield kind, name, registry.owner(kind, name), options or "-"


def _costs(
    model: Any, findings: Any, names: str, seq: str, density: str = "", dtype: str | None = None
) -> Any:
    """Ask the devices that options name for the lengths and shares that options name."""
    from sparsify.costs import costs
    from sparsify.devices import device_named

    devices = [device_named(name.strip()) for name in names.split(",")]
    lengths = [max(1, round(length)) for length in sorted(numbers_between(seq, "--seq"))]
    densities = numbers_between(density, "--density") if density else []
    return costs(model, findings.sites, devices, lengths, densities, dtype)
