"""Export, check and report: `python -m benchmarks.zoo --folder FOLDER [--report FILE.md]`."""

from fnmatch import fnmatch
from pathlib import Path

import click

from benchmarks.zoo.attempt import attempt
from benchmarks.zoo.report import document
from benchmarks.zoo.results import Log, totals
from benchmarks.zoo.variants import variants


@click.command()
@click.option(
    "--folder",
    default="out/zoo",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where files and results are kept; what is there is not done again.",
)
@click.option(
    "--only", multiple=True, metavar="GLOB", help="Variants with such names, as `llama_*_past_*`."
)
@click.option(
    "--again", type=click.Choice(["bad", "all"]), help="Check again what is done, or went badly."
)
@click.option("--report", type=click.Path(path_type=Path), help="Markdown file to write.")
def main(folder: Path, only: tuple[str, ...], again: str | None, report: Path | None) -> None:
    """Export tiny models in many ways, and see how much of their attention is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    log = Log(folder)
    for variant in variants():
        known = log.results.get(variant.name)
        redo = again == "all" or (again == "bad" and known is not None and known.bad)
        wanted = not only or any(fnmatch(variant.name, glob) for glob in only)
        if wanted and (known is None or redo):
            log.add(attempt(variant, folder))
            click.echo(log.results[variant.name].line())
    pairs = [(each, log.results[each.name]) for each in variants() if each.name in log.results]
    click.echo(totals([result for _, result in pairs]))
    if report is not None:
        report.write_text(document(pairs), encoding="utf-8")


if __name__ == "__main__":
    main()
