"""Which variants of each architecture are exported: every axis is spread over the architectures."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.zoo.architectures import ARCHITECTURES, Architecture, Input

TORCHSCRIPT_OPSETS = (14, 15, 16, 17, 18, 20)
DYNAMO_OPSETS = (18, 19, 20, 21, 22, 23)
NUMBERS = ("fp16", "int8", "qdq")


@dataclass(frozen=True)
class Variant:
    """One file: an architecture and how it is exported.

    `use` is "whole" (no cache), "prefill" (the cache comes out) or "past" (it also goes in);
    `numbers` is "fp32", "fp16", "int8" (quantised dynamically) or "qdq" (statically).
    """

    row: Architecture
    exporter: str
    attention: str
    opset: int
    use: str = "whole"
    numbers: str = "fp32"

    @property
    def name(self) -> str:
        """Unique, and the file's name."""
        parts = (self.exporter, self.attention, str(self.opset), self.use, self.numbers)
        return "_".join((self.row.name, *parts))

    def file(self, folder: Path) -> Path:
        """Where it is exported to."""
        return folder / f"{self.name}.onnx"

    @property
    def promised(self) -> int:
        """The number of attentions; a decoder that starts from a cache has no encoder."""
        if self.use == "past" and self.row.past is not None and self.row.past.source is not None:
            return 2 * self.row.past.layers
        return self.row.blocks

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The row's inputs; with a cache, the encoder's result stands for what it read."""
        past = self.row.past
        if self.use != "past" or past is None:
            return self.row.inputs
        if past.source is None:
            ids, mask = self.row.inputs
            return (ids, Input(mask.name, mask.kind, ("batch", "past+length")), *past.inputs())
        hidden = Input("encoder_outputs", "floats", ("batch", past.source, past.heads * past.dim))
        kept = [
            each for each in self.row.inputs if each.name not in ("input_ids", "input_features")
        ]
        return (hidden, *kept, *past.inputs())


def variants() -> Iterator[Variant]:
    """Two or three of each architecture; the first of every one come first."""
    spread = [list(_spread(index, row)) for index, row in enumerate(ARCHITECTURES)]
    for place in range(max(map(len, spread))):
        yield from (each[place] for each in spread if place < len(each))


def _spread(index: int, row: Architecture) -> Iterator[Variant]:
    count = len(row.attentions)
    one, other = row.attentions[index % count], row.attentions[(index + 1) % count]
    old = TORCHSCRIPT_OPSETS[index % len(TORCHSCRIPT_OPSETS)]
    new = DYNAMO_OPSETS[index % len(DYNAMO_OPSETS)]
    first, second = ("whole", "whole") if row.past is None else ("prefill", "past")
    if index // 2 % 2:
        first, second = second, first
    yield Variant(row, "torchscript", one, old, first)
    yield Variant(row, "dynamo", other, new, second)
    if index % 3 == 0 or (row.past is not None and index % 3 == 1):
        exporter, opset = ("torchscript", old) if index // 3 % 2 else ("dynamo", new)
        yield Variant(row, exporter, other, opset, first, NUMBERS[index % 7 % len(NUMBERS)])
