"""The key-value cache of ONNX Runtime's GroupQueryAttention: rows written where each batch stands.

The cache may be longer than what it holds, and batches may hold different numbers of keys. Source:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from dataclasses import dataclass

from sparsify.builder import Builder


@dataclass(frozen=True)
class Cache:
    """Lengths `[batch]`: keys held before the step; and 0-D: room, new keys, keys in the result."""

    builder: Builder
    held: str
    room: str
    new: str
    result: str

    def rows(self, batch_heads: tuple[str, str]) -> str:
        """Which row of all rows `[cache, new keys, one of zeros]` stands at each place.

        `batch_heads` are 1-D sizes; the result is `[batch, heads, keys in the result]`.
        """
        builder = self.builder
        place = builder.arange(self.result)
        held = builder.unsqueeze(self.held, (1,))
        shifted = builder.op("Add", builder.op("Sub", place, held), self.room)
        last = builder.op("Add", self.room, self.new)  # the row of zeros
        behind = self._least(shifted, last)
        row = builder.op("Where", builder.op("Less", place, held), place, behind)
        return builder.op("Add", builder.unsqueeze(row, (1,)), self._starts(batch_heads, last))

    def _starts(self, batch_heads: tuple[str, str], last: str) -> str:
        """The first row of each batch and head among all, `[batch, heads, 1]`."""
        builder = self.builder
        shape = builder.concat(batch_heads, 0)
        count = builder.op("Mul", *batch_heads)
        each = builder.op("Add", last, builder.constant(1, "int64"))
        flat = builder.op("Mul", builder.arange(builder.squeeze(count, (0,))), each)
        return builder.unsqueeze(builder.reshape(flat, shape), (2,))

    def _least(self, a: str, b: str) -> str:
        builder = self.builder
        return builder.op("Where", builder.op("Less", a, b), a, b)

    def written(self, past: str, new: str, rows: str, zero: str) -> str:
        """`[batch, heads, keys in the result, dim]` from the cache and the new keys."""
        builder = self.builder
        outer, dim = builder.dims(past, 0, 1), builder.dims(past, 3)
        empty = builder.op("Expand", zero, builder.concat([outer, builder.ints(1), dim], 0))
        every = builder.concat([past, new, empty], 2)
        flat = builder.reshape(every, builder.concat([builder.ints(-1), dim], 0))
        return builder.gather(flat, rows, 0)
