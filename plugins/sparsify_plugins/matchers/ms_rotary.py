"""Rotary embedding as ONNX Runtime's GroupQueryAttention applies it to Q and the new keys.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from dataclasses import dataclass

from sparsify.builder import Builder

_END = 1 << 31


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines `[batch, 1, length, angles]`, and how the rotated pairs lie in a row."""

    builder: Builder
    cosines: str
    sines: str
    angles: int
    interleaved: bool

    def rotated(self, x: str, dim: int) -> str:
        """`[batch, heads, length, dim]` with its first `2 * angles` components rotated."""
        rest = self._part(x, 2 * self.angles, _END) if dim > 2 * self.angles else ""
        first, second = self._pairs(x)
        real = self._turned("Sub", first, self.cosines, second, self.sines)
        imaginary = self._turned("Add", second, self.cosines, first, self.sines)
        joined = self._joined(real, imaginary)
        return self.builder.concat([joined, rest], 3) if rest else joined

    def _pairs(self, x: str) -> tuple[str, str]:
        end = 2 * self.angles
        if self.interleaved:
            return self._part(x, 0, end, 2), self._part(x, 1, end, 2)
        return self._part(x, 0, self.angles), self._part(x, self.angles, end)

    def _joined(self, real: str, imaginary: str) -> str:
        builder = self.builder
        if not self.interleaved:
            return builder.concat([real, imaginary], 3)
        pairs = builder.concat([builder.unsqueeze(part, (4,)) for part in (real, imaginary)], 4)
        return builder.reshape(pairs, (0, 0, 0, -1))

    def _turned(self, op: str, a: str, by_a: str, b: str, by_b: str) -> str:
        builder = self.builder
        return builder.op(op, builder.op("Mul", a, by_a), builder.op("Mul", b, by_b))

    def _part(self, x: str, start: int, end: int, step: int = 1) -> str:
        bounds = [self.builder.ints(value) for value in (start, end, 3, step)]
        return self.builder.op("Slice", x, *bounds)


def rotary(
    builder: Builder, tables: tuple[str, str], positions: str, angles: int, interleaved: bool
) -> Rotary:
    """The rotation at `positions` `[batch, length]`, from tables `[positions, angles]`."""
    rows = [builder.unsqueeze(builder.gather(table, positions, 0), (1,)) for table in tables]
    return Rotary(builder, rows[0], rows[1], angles, interleaved)
