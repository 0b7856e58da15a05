"""Which attentions the benchmark measures, and what it wants of each."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.operators import Blocks, Shape

HEADS = 8
LONG = (1024, 2048, 4096)
LONGEST = 8192
SHORT = (1, 8, 16, 64, 128, 197, 512)
DIMS = (64, 32, 128)
K_BLOCKS = (64, 16, 1)

DENSE, CAUSAL = 0.95, 0.60
SPARSE = {0.5: 0.55, 0.2: 0.25, 0.1: 0.14}
"""The targets by density: the largest share of the fused rival's time that still counts as met."""

SHORT_RATIO, SHORT_SECONDS = 1.05, 10e-6
"""At short lengths either will do: the ratio, or the difference."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    shape: Shape
    blocks: Blocks | None = None
    causal: bool = False

    @property
    def what(self) -> str:
        """The row's name."""
        if self.blocks is None:
            return "causal" if self.causal else "dense"
        return f"{self.blocks.density:.0%}, k_block {self.blocks.k_block}"

    @property
    def permitted(self) -> float:
        """The share of the scores that the mask permits."""
        return (1 + 1 / self.shape.length) / 2 if self.causal else 1.0

    @property
    def short(self) -> bool:
        """Whether the allowance for short lengths holds."""
        return self.shape.length < LONG[0]

    @property
    def limit(self) -> float:
        """The largest ratio to the fused rival that is wanted."""
        if self.short:
            return SHORT_RATIO
        if self.blocks is None:
            return CAUSAL if self.causal else DENSE
        return SPARSE[self.blocks.density]

    @property
    def target(self) -> str:
        """The target in words."""
        also = f" or +{SHORT_SECONDS * 1e6:.0f} us" if self.short else ""
        return f"<= {self.limit}{also}"

    def met(self, ratio: float, difference: float) -> bool:
        """Whether a ratio to the rival, or a difference in seconds, is within the target."""
        return ratio <= self.limit or (self.short and difference <= SHORT_SECONDS)


def long_cases(quick: bool) -> Iterator[Case]:
    """Dense, causal and sparse for every head size; the smaller blocks at D 64 only."""
    for dim in DIMS:
        for length in LONG if quick else (*LONG, LONGEST):
            shape = Shape(HEADS, length, dim)
            yield Case(shape)
            yield Case(shape, causal=True)
            for k_block in K_BLOCKS if dim == DIMS[0] else K_BLOCKS[:1]:
                for density in SPARSE:
                    yield Case(shape, Blocks(density, k_block))


def short_cases() -> Iterator[Case]:
    """Dense attention on few tokens."""
    for length in SHORT:
        yield Case(Shape(HEADS, length, DIMS[0]))
