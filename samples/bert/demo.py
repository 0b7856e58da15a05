"""Replaces the attention of a sentence encoder exactly, and asks people's scores whether it holds.

Run it from the top of the repository: `python -m samples.bert.demo`.
"""

import os
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import sparsify
from samples.bert.documents import (
    EMBEDDING,
    Feeds,
    Floats,
    agreement_with_people,
    model_path,
    tokenized,
)
from sparsify.timing import Timing

console = Console(highlight=False)

AGREE = 1e-4
"""Largest difference of an embedding that an exact replacement may make."""


@click.command()
@click.option("--pairs", default=7, type=click.IntRange(min=1), help="Counted rounds.")
@click.option("--threads", default=os.cpu_count(), help="Threads of each run.")
@click.option("--out", default="out/bert", type=click.Path(path_type=Path), help="Folder.")
def main(pairs: int, threads: int, out: Path) -> None:
    """Convert, compare the embeddings, and print one table."""
    out.mkdir(parents=True, exist_ok=True)
    feeds, models = tokenized(), (model_path(), out / "exact.onnx")
    with console.status("converting, verifying, timing"):
        np.savez(out / "documents.npz", **feeds)  # type: ignore[arg-type]
        trial = sparsify.Trial(data=(out / "documents.npz",))
        report = sparsify.optimize(models[0], models[1], trial=trial)
        before, after = (embeddings(model, feeds) for model in models)
        timings = sparsify.bench(models, feeds, pairs=pairs, threads=threads)
    difference = float(np.abs(after - before).max())
    documents, length = feeds["input_ids"].shape
    console.print(
        f"{report.replaced} of {report.found} attentions of a sentence encoder replaced exactly; "
        f"{documents} documents, padded to {length} tokens"
    )
    _show((before, after), timings, difference)
    if difference > AGREE:
        raise SystemExit(f"the embeddings differ by {difference:.1e}, more than {AGREE:.0e}")


def embeddings(model: Path, feeds: Feeds) -> Floats:
    """One vector per document."""
    result: Floats = sparsify.session(model).run([EMBEDDING], feeds)[0]
    return result


def _show(vectors: tuple[Floats, Floats], timings: list[Timing], difference: float) -> None:
    table = Table()
    for column in ("model", "correlation with people", "largest difference", "time"):
        table.add_column(column)
    for title, each, timing, text in zip(
        ("original", "exact"), vectors, timings, ("-", f"{difference:.1e}"), strict=True
    ):
        score = f"{agreement_with_people(each):.6f}"
        table.add_row(title, score, text, f"{timing.median * 1e3:.1f} ms")
    console.print(table)


if __name__ == "__main__":
    main()
