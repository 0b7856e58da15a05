"""What became of the variants, kept as one JSON line each, and as tables."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.document import Table
from benchmarks.zoo.variants import Variant

STATUSES = {
    "ok": "every promised attention is replaced, and the outputs agree",
    "empty rows": "the outputs agree but at padding, where the mask leaves queries without keys",
    "missed": "fewer are replaced than promised; the outputs agree",
    "wrong": "the outputs differ",
    "crashed": "sparsify fails, or is killed at its limits",
    "not exported": "torch, or the quantiser, does not make the file",
    "not runnable": "ONNX Runtime does not run the file as it was exported",
}
STATUSES_COUNTED = ("ok", "empty rows", "missed", "wrong", "crashed")
OUT_OF_SCOPE = ("not exported", "not runnable")
"""What says nothing about sparsify, and is not counted."""


@dataclass(frozen=True)
class Result:
    """One variant: its status, a key of `STATUSES`; `why` is a sentence for the worse ones.

    `errors` are relative L2 errors of the worst output, through the function body and through the
    native library; `floor` is what the original differs from itself by, where that was needed.
    `fixed` are the dimensions of which the exporter made numbers.
    """

    name: str
    status: str
    promised: int
    why: str = ""
    found: int = 0
    replaced: int = 0
    refusals: Sequence[Mapping[str, Any]] = ()
    errors: Sequence[float] = ()
    floor: float = 0.0
    fixed: Sequence[str] = ()

    @property
    def bad(self) -> bool:
        """Whether it says something about sparsify, and nothing good."""
        return self.status not in ("ok", *OUT_OF_SCOPE)

    def line(self) -> str:
        """The result for the terminal."""
        codes = ", ".join(sorted({refusal["code"] for refusal in self.refusals}))
        worst = f"{max(self.errors):.0e}" if self.errors else "-"
        counts = f"{self.replaced} of {self.promised}"
        return f"{self.name}: {self.status}, {counts}, error {worst} {self.why or codes}".rstrip()


class Log:
    """The results of a folder; the last line about a variant holds."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "results.jsonl"
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        self.results = {result.name: result for result in map(_parsed, lines)}

    def add(self, result: Result) -> None:
        """Keep a result, on disk at once."""
        self.results[result.name] = result
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def _parsed(line: str) -> Result:
    known = {each.name for each in fields(Result)}
    return Result(**{key: value for key, value in json.loads(line).items() if key in known})


Pairs = Sequence[tuple[Variant, Result]]

AXES: Mapping[str, Callable[[Variant], str]] = {
    "domain": lambda variant: variant.row.domain,
    "exporter": lambda variant: variant.exporter,
    "attention": lambda variant: variant.attention,
    "opset": lambda variant: str(variant.opset),
    "use": lambda variant: variant.use,
    "numbers": lambda variant: variant.numbers,
}
_COUNTS = ("files", "promised", "replaced", "share", *STATUSES_COUNTED, "worst error")


def tables(pairs: Pairs) -> list[Table]:
    """Totals, every axis, every architecture, what was refused, and what is not counted."""
    counted = [(v, r) for v, r in pairs if r.status not in OUT_OF_SCOPE]
    rest = [(v, r) for v, r in pairs if r.status in OUT_OF_SCOPE]
    axes = [("all", "", *_counts(counted))]
    for axis, of in AXES.items():
        axes += [(axis, *row) for row in _by(counted, of)]
    return [
        Table("By axis", ("axis", "value", *_COUNTS), tuple(axes)),
        Table(
            "By architecture",
            ("architecture", *_COUNTS),
            tuple(_by(counted, lambda variant: variant.row.name)),
        ),
        Table("Refusals", ("code", "sites", "files", "for example"), tuple(_refusals(counted))),
        Table("Incomplete", ("file", "status", "replaced", "why"), tuple(_incomplete(counted))),
        Table(
            "Not counted",
            ("file", "status", "why"),
            tuple((v.name, r.status, _cell(r.why)) for v, r in rest),
        ),
    ]


def _by(pairs: Pairs, of: Callable[[Variant], str]) -> Iterator[tuple[str, ...]]:
    for value in sorted({of(variant) for variant, _ in pairs}):
        yield value, *_counts([(v, r) for v, r in pairs if of(v) == value])


def _counts(pairs: Pairs) -> tuple[str, ...]:
    promised = sum(result.promised for _, result in pairs)
    replaced = sum(min(result.replaced, result.promised) for _, result in pairs)
    statuses = Counter(result.status for _, result in pairs)
    good = [result for _, result in pairs if result.status in ("ok", "missed")]
    worst = max((error for result in good for error in result.errors), default=0.0)
    share = f"{replaced / promised:.1%}" if promised else "-"
    numbers = (promised, replaced, share, *(statuses[status] for status in STATUSES_COUNTED))
    return (str(len(pairs)), *map(str, numbers), f"{worst:.1e}")


def _refusals(pairs: Pairs) -> Iterator[tuple[str, ...]]:
    each = [(refusal, variant) for variant, result in pairs for refusal in result.refusals]
    for code, count in Counter(refusal["code"] for refusal, _ in each).most_common():
        files = {variant.name for refusal, variant in each if refusal["code"] == code}
        example = next(refusal["reason"] for refusal, _ in each if refusal["code"] == code)
        yield code, str(count), str(len(files)), _cell(example)


def _incomplete(pairs: Pairs) -> Iterator[tuple[str, ...]]:
    for variant, result in pairs:
        if result.status != "ok":
            codes = sorted({refusal["code"] for refusal in result.refusals})
            why = result.why or ", ".join(codes)
            yield variant.name, result.status, f"{result.replaced} of {result.promised}", _cell(why)


def _cell(text: str) -> str:
    """The first line of a text, short, as it can stand in a table."""
    line = (text.strip().splitlines() or [""])[0].replace("|", "\\|")
    return line if len(line) <= 160 else line[:157] + "..."


def totals(results: Iterable[Result]) -> str:
    """One line for the terminal."""
    counts = Counter(result.status for result in results)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
