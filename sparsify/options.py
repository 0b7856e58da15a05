"""Options that several commands share, what their values mean, and the progress bar."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sparsify.errors import SparsifyError

err = Console(stderr=True, highlight=False)

Decorator = Callable[[Callable[..., None]], Callable[..., None]]
MODEL = click.argument("model", type=click.Path(path_type=Path))
OUTPUT = click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
NO_LIBRARY = click.option(
    "--no-library", is_flag=True, help="Run outputs through their function bodies only."
)
WEIGHTS = click.option(
    "--weights",
    type=click.Choice(["copy", "reference"]),
    default="copy",
    help="Copy external weights beside the output, or refer to the input's.",
)


def trial_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--data`, `--dim` and `--shape`: what to run a model on."""
    for option in (
        click.option(
            "--shape",
            "shapes",
            multiple=True,
            metavar="INPUT=1x3x896x896",
            help="Shape of a stand-in input.",
        ),
        click.option(
            "--dim",
            "dims",
            multiple=True,
            metavar="NAME=SIZE",
            help="Size of a symbolic dimension of stand-in inputs.",
        ),
        click.option(
            "--data",
            "data",
            multiple=True,
            type=click.Path(path_type=Path),
            help="Inputs to verify on: .npz, arrays named as the model's inputs.",
        ),
    ):
        command = option(command)
    return command


def pattern_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--pattern`, `--exact`, `--residual`, `--max-length` and `--device`: what to do."""
    for option in (
        click.option("--device", default="host", help="The device to plan for."),
        click.option(
            "--max-length",
            type=click.IntRange(min=1),
            help="Longest sequence, in tokens, that grids are made for.",
        ),
        click.option(
            "--residual",
            type=click.Choice(["none", "mean", "iso"]),
            default="none",
            help="What keys contribute that a pattern leaves out.",
        ),
        click.option("--exact", is_flag=True, help="Change no number: no pattern at all."),
        click.option(
            "--pattern",
            "patterns",
            multiple=True,
            metavar="[SITE_GLOB=]NAME:key=value,...",
            help="Pattern for all sites, or for those that match; the last that fits holds.",
        ),
    ):
        command = option(command)
    return command


def check_patterns(patterns: Sequence[str], exact: bool, residual: str) -> None:
    """Refuse options that contradict one another."""
    if exact and patterns:
        raise click.UsageError("--exact changes no number; it does not go with --pattern")
    if residual != "none" and not patterns:
        raise click.UsageError("--residual says what a pattern leaves out; give --pattern")


def read_required(text: str, allow_noop: bool) -> int | str:
    """Read `--require N|all`."""
    if text != "all" and not (text.isascii() and text.isdigit()):
        raise click.UsageError(f"--require takes a number or 'all', not {text!r}")
    if allow_noop:
        return 0
    return text if text == "all" else int(text)


def read_trial(
    data: Sequence[Path],
    dims: Sequence[str],
    shapes: Sequence[str],
    library: bool = True,
    enabled: bool = True,
) -> Any:
    """Read what to run on."""
    from sparsify.api import Trial
    from sparsify.feeds import parse_dim, parse_shape

    return Trial(
        tuple(data), dict(map(parse_dim, dims)), dict(map(parse_shape, shapes)), enabled, library
    )


@contextmanager
def steps(quiet: bool, total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on standard error that moves on with each named step."""
    hidden = quiet or not err.is_terminal
    columns = (TextColumn("{task.description:<20}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=hidden) as bar:
        task = bar.add_task("starting", total=total, completed=-1)
        yield lambda step: bar.update(task, description=step, advance=1)


DTYPES = ("bfloat16", "float16", "float32")
"""Types that an attention may be asked about."""

_MOST = 2.0**40
"""Above any length that makes sense."""


def numbers_between(text: str, what: str) -> list[float]:
    """Read `1k..64k` (doubling from the first to the last) or `1k,3k`; k is 1024.

    Raises:
        SparsifyError: the text is neither.
    """
    first, dots, last = text.partition("..")
    if not dots:
        return [_number(part, what) for part in text.split(",")]
    return list(_doubling(_number(first, what), _number(last, what), what))


def _doubling(first: float, last: float, what: str) -> Iterator[float]:
    if last < first:
        raise SparsifyError(f"{what} {first:g}..{last:g}: give the smaller number first")
    while first < last:
        yield first
        first *= 2
    yield last


def _number(text: str, what: str) -> float:
    digits, factor = (text[:-1], 1024) if text[-1:] in ("k", "K") else (text, 1)
    try:
        value = float(digits) * factor
    except ValueError:
        value = math.nan
    if not 0 < value < _MOST:
        raise SparsifyError(f"{what} {text!r}: give positive numbers, as in 1k..64k or 0.05,0.2")
    return value
