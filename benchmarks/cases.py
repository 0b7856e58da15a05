"""Which attentions the benchmark measures, against what, and what it wants of each."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.problem import Blocks, Problem, tokens

LONG = (1024, 2048, 4096, 8192)
SHORT = (1, 8, 16, 64, 128, 197, 512, 1024, 4096)
RIVALS = (128, 1024, 4096)
WINDOW = 255
"""Keys before its own that a query sees in the causal window: 256 with its own."""
DIMS = (64, 32, 128)
K_BLOCKS = (64, 16, 1)
ISO = 2
"""The operator's attribute `residual` for it."""

DENSE = {64: 0.88, 32: 0.85, 128: 0.90}
CAUSAL = 0.48
MASKED = 0.90
SPARSE = {0.5: 0.46, 0.2: 0.20, 0.1: 0.11}
GATHERED = {0.5: 0.50, 0.2: 0.21, 0.1: 0.12}
"""The same for single keys, k_block 1."""
TENTH_OF_1024 = 0.14
"""At 1024 tokens a tenth is so little that what every query block costs shows."""
RESIDUAL = 0.06
ALIKE = 1.05
ALIKE_SECONDS = 10e-6
HALF = 1.15
BFLOAT16 = 0.52
TWO_THREADS = 1.9


@dataclass(frozen=True)
class Limit:
    """The largest time that counts as met, as a ratio to the fastest of some rivals.

    What is compared is our time, or what it exceeds that of `without` by. A time within `seconds`
    of the rival's will do as well. `speed_up` only words the target the other way round. A limit
    of infinity only names rivals.
    """

    most: float
    to: tuple[str, ...] = ("fused",)
    without: str = ""
    seconds: float = 0.0
    speed_up: bool = False

    @property
    def wanted(self) -> bool:
        """Whether there is a target at all."""
        return math.isfinite(self.most)

    def __str__(self) -> str:
        if not self.wanted:
            return "-"
        if self.speed_up:
            return f">= {1 / self.most:.3g}x"
        also = f" or +{self.seconds * 1e6:.0f} us" if self.seconds else ""
        return f"{'adds ' if self.without else ''}<= {self.most:.2f}{also}"


@dataclass(frozen=True)
class Case:
    """One row of a table; `also` is timed for information, `threads` of 0 are those of the run."""

    problem: Problem
    limit: Limit
    also: tuple[str, ...] = ()
    threads: int = 0

    @property
    def entries(self) -> tuple[str, ...]:
        """All that is timed, by name, ours last."""
        without = (self.limit.without,) if self.limit.without else ()
        return (*self.limit.to, *without, *self.also, "ours")

    @property
    def rivals(self) -> tuple[str, ...]:
        """All that is timed but ours."""
        return self.entries[:-1]

    @property
    def brief(self) -> bool:
        """Whether a run is so short that more of them should be taken."""
        return self.problem.queries * self.problem.keys < 1024**2


def dense() -> Iterator[Case]:
    """Every score, and every score that causality permits."""
    for dim in DIMS:
        for length in LONG:
            problem = tokens(length, dim)
            yield Case(problem, Limit(DENSE[dim]), ("same layout", "unfused"))
            yield Case(replace(problem, causal=True), Limit(CAUSAL), ("fused alike",))


def masks() -> Iterator[Case]:
    """Every score, with a mask that the rival has too."""
    for length in LONG:
        for mask in ("bias", "padding"):
            problem = tokens(length, mask=mask)
            yield Case(problem, Limit(MASKED, ("fused alike",)), ("fused",))


def sparse() -> Iterator[Case]:
    """Some of the scores; the smaller blocks at D 64 only."""
    for dim in DIMS:
        for length in LONG:
            for k_block in K_BLOCKS if dim == DIMS[0] else K_BLOCKS[:1]:
                for density in SPARSE:
                    problem = tokens(length, dim, blocks=Blocks(density, k_block))
                    yield Case(problem, Limit(_sparse_limit(problem.keys, density, k_block)))


def _sparse_limit(length: int, density: float, k_block: int) -> float:
    if length == LONG[0] and density == min(SPARSE):
        return TENTH_OF_1024
    return (GATHERED if k_block == 1 else SPARSE)[density]


def residual() -> Iterator[Case]:
    """What it costs that left-out keys contribute through the means of their groups."""
    for length in LONG:
        for density in (0.2, 0.1):
            problem = tokens(length, blocks=Blocks(density, 16), residual=ISO)
            yield Case(problem, Limit(RESIDUAL, without="without residual"))


def short() -> Iterator[Case]:
    """No length is so short, or so long, that the operator is in the way."""
    limit = Limit(ALIKE, ("fused", "unfused"), seconds=ALIKE_SECONDS)
    for length in SHORT:
        yield Case(tokens(length), limit, ("same layout",))
    yield Case(tokens(16384, heads=1, kv_heads=1), limit, ("same layout",))


def decode() -> Iterator[Case]:
    """Few queries on a cache of keys."""
    for keys in (4096, 16384):
        for queries in (1, 8):
            for kv_heads in (8, 2):
                problem = Problem(queries, keys, kv_heads=kv_heads)
                yield Case(problem, Limit(1.0, ("fused, cache", "unfused")))


def types() -> Iterator[Case]:
    """Half-precision tensors, which are computed in float32."""
    for dtype in ("float16", "bfloat16"):
        for blocks in (None, Blocks(0.2, 64)):
            problem = tokens(2048, dtype=dtype, blocks=blocks)
            yield Case(problem, Limit(HALF, ("ours, float32",)), ("fused",))


def bfloat16() -> Iterator[Case]:
    """Float32 tensors, multiplied in bfloat16."""
    for dim in DIMS:
        for length in LONG:
            problem = tokens(length, dim, bfloat16=True)
            yield Case(problem, Limit(BFLOAT16), ("ours, float32",))
    sparse = tokens(LONG[-2], blocks=Blocks(0.2, 64), bfloat16=True)
    yield Case(sparse, Limit(SPARSE[0.2]), ("ours, float32",))


def threads() -> Iterator[Case]:
    """Two threads against one."""
    limit = Limit(1 / TWO_THREADS, ("1 thread",), speed_up=True)
    for blocks in (None, Blocks(0.2, 64)):
        yield Case(tokens(4096, blocks=blocks), limit, threads=2)


def rivals() -> Iterator[Case]:
    """Every other dense attention that computes the same, for information."""
    libraries = ("torch SDPA", "torch FlexAttention", "OpenVINO")
    for length in RIVALS:
        problem = tokens(length)
        dense = ("fused", "unfused", "ai.onnx Attention", *libraries)
        yield Case(problem, Limit(math.inf, dense))
        causal = ("fused alike", "GroupQueryAttention", "ai.onnx Attention", *libraries)
        yield Case(replace(problem, causal=True), Limit(math.inf, causal))
        if length > WINDOW:
            near = replace(problem, causal=True, window=WINDOW)
            yield Case(near, Limit(math.inf, ("GroupQueryAttention", "torch FlexAttention")))
