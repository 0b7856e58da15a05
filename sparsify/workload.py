"""What a device is asked and what it answers: the work of one attention, and its cost in parts.

Sizes are in tokens and elements, times in seconds, energies in joules.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sparsify.errors import SparsifyError

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one element, for each type that an attention may have."""

BITS = (4, 8, 16, 32)
"""Bits of the numbers that a prediction of blocks may multiply."""

RESIDUALS = ("none", "mean", "iso")
"""What keys contribute that a selection leaves out."""

PARTS = (
    "qk",
    "softmax",
    "pv",
    "selector",
    "residual",
    "memory",
    "overhead",
    "imbalance",
)
"""The parts of a cost. `memory` is the time that reading and writing adds to computing; `overhead`
that of calls, launches and lists; `imbalance` that of workers who wait for the slowest."""


@dataclass(frozen=True)
class SelectorWork:
    """What choosing the blocks of one call takes, over all batches and heads.

    `elements` are numbers of queries and keys that are read, `macs` multiply-adds of numbers of
    `bits` bits, `scores` predicted scores that go through a softmax, `choices` masses of blocks
    among which is chosen, `calls` operators that run.

    Raises:
        SparsifyError: other `bits` than `BITS`, or an amount below 0.
    """

    macs: int = 0
    scores: int = 0
    choices: int = 0
    calls: int = 0
    bits: int = 32
    elements: int = 0

    def __post_init__(self) -> None:
        amounts = vars(self).values()
        if self.bits not in BITS or not all(0 <= amount < math.inf for amount in amounts):
            raise SparsifyError(
                f"{self}: bits are one of {BITS}, and amounts are finite, none below 0"
            )


NO_SELECTOR = SelectorWork()
"""The work of a selection that is stored in the file."""


_NO_SIZES = frozenset({"dtype", "kept", "residual", "selector"})
_MAY_BE_ZERO = frozenset({"bias_heads", "mask_heads", "seen"})


def _check_size(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        wanted = "a positive number" if least else "a number from 0 on"
        raise SparsifyError(f"workload: {name} is {value!r}; give {wanted}")


@dataclass(frozen=True)
class Workload:
    """One call of one attention.

    Lengths are in tokens. `kept` is a histogram over all query blocks of all batches and heads:
    pairs of how many keys a query block computes and how many query blocks do; without it, every
    query block computes every key. `seen` are the keys that query blocks may see, added up over
    all of them; 0 means all. `bias_heads` heads have numbers of their own that are added to every
    score of every row, `mask_heads` such tables of what is forbidden: 0 where there is none, 1
    where all heads share one. `residual_block` is the size of the groups through which left-out
    keys contribute.

    Raises:
        SparsifyError: a size that makes no sense, or a histogram of other query blocks.
    """

    batch: int
    heads: int
    kv_heads: int
    q_length: int
    k_length: int
    head_dim: int
    value_dim: int
    dtype: str = "float32"
    q_block: int = 64
    k_block: int = 64
    kept: tuple[tuple[int, int], ...] = ()
    seen: int = 0
    bias_heads: int = 0
    mask_heads: int = 0
    residual: str = "none"
    residual_block: int = 64
    selector: SelectorWork = NO_SELECTOR

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name not in _NO_SIZES:
                _check_size(name, value, least=0 if name in _MAY_BE_ZERO else 1)
        if self.heads % self.kv_heads or max(self.bias_heads, self.mask_heads) > self.heads:
            raise SparsifyError(
                f"workload: {self.heads} heads over {self.kv_heads} with biases of "
                f"{self.bias_heads} and masks of {self.mask_heads}; give numbers that fit"
            )
        if self.dtype not in ITEM_BYTES:
            raise SparsifyError(f"workload: no type {self.dtype!r}; known: {', '.join(ITEM_BYTES)}")
        if self.residual not in RESIDUALS:
            known = ", ".join(RESIDUALS)
            raise SparsifyError(f"workload: no residual {self.residual!r}; known: {known}")
        self._check_histogram()

    def _check_histogram(self) -> None:
        keys = [keys for keys, _ in self.kept]
        if self.kept and not 0 <= min(keys) <= max(keys) <= self.k_length:
            raise SparsifyError(
                f"workload: query blocks of {min(keys)} to {max(keys)} of {self.k_length} keys; "
                "give counts between 0 and all"
            )
        blocks = sum(blocks for _, blocks in self.kept)
        if self.kept and (blocks != self.blocks or min(b for _, b in self.kept) < 1):
            raise SparsifyError(
                f"workload: a histogram of {blocks} query blocks; there are {self.blocks}"
            )

    @property
    def blocks(self) -> int:
        """Number of query blocks, over all batches and heads; the last of a head may be short."""
        return self.batch * self.heads * -(-self.q_length // self.q_block)

    @property
    def histogram(self) -> tuple[tuple[int, int], ...]:
        """`kept`, or all keys for every query block."""
        return self.kept or ((self.k_length, self.blocks),)

    @property
    def kept_keys(self) -> int:
        """Keys that are computed, counted once for every query block."""
        return sum(keys * blocks for keys, blocks in self.histogram)

    @property
    def density(self) -> float:
        """The share of the scores that is computed."""
        return self.kept_keys / (self.k_length * self.blocks)

    @property
    def scores(self) -> float:
        """Scores that are computed, over all batches and heads."""
        return self.batch * self.heads * self.q_length * self.k_length * self.density

    @property
    def groups(self) -> float:
        """Groups of left-out keys, counted once for every query block; 0 without a residual.

        Keys that a query block may not see belong to none.
        """
        if self.residual == "none":
            return 0.0
        seen = self.seen or self.k_length * self.blocks
        return max(0, seen - self.kept_keys) / self.residual_block

    @property
    def macs(self) -> float:
        """Multiply-adds of the computed scores and of the values that they weigh."""
        return self.scores * (self.head_dim + self.value_dim)

    @property
    def table_reads(self) -> float:
        """How often each number of a bias or mask is read.

        Those of kept keys once. A residual asks of all what they forbid, and takes the biases of
        left-out keys into their groups.
        """
        return self.density if self.residual == "none" else 2.0

    @property
    def bias_bytes(self) -> int:
        """Bytes of all biases, each counted once."""
        return self.bias_heads * self.q_length * self.k_length * ITEM_BYTES[self.dtype]

    @property
    def io_bytes(self) -> float:
        """Bytes of query, key, value, output and the biases of kept keys, each counted once."""
        dims = self.head_dim + self.value_dim
        rows = self.heads * self.q_length + self.kv_heads * self.k_length
        biases = self.bias_bytes * min(1.0, self.table_reads)
        return self.batch * rows * dims * ITEM_BYTES[self.dtype] + biases


@dataclass(frozen=True)
class MatrixWork:
    """Work of a model beside its attentions, in `calls` products.

    All together take `macs` multiply-adds and read and write `io_bytes`.
    """

    macs: float
    io_bytes: float
    dtype: str = "float32"
    calls: int = 1


@dataclass(frozen=True)
class Cost:
    """What a device takes: `seconds` of one call, and an estimate of its energy in `joules`.

    `bound` says what holds it up: "compute", "memory" or "overhead". `parts` divides the seconds
    by `PARTS`; a device that cannot tell them leaves it empty.
    """

    seconds: float
    joules: float
    bound: str
    parts: Mapping[str, float] = field(default_factory=dict)


def cost_of(parts: Mapping[str, float], joules: float) -> Cost:
    """Add parts up, in seconds, and tell what holds the work up."""
    groups = {
        "memory": parts.get("memory", 0.0),
        "overhead": parts.get("overhead", 0.0) + parts.get("imbalance", 0.0),
    }
    seconds = math.fsum(parts.values())
    groups["compute"] = seconds - sum(groups.values())
    return Cost(seconds, joules, max(groups, key=lambda name: groups[name]), dict(parts))


def at_density(workload: Workload, density: float) -> Workload:
    """The workload with a share of the keys computed that each query block computes now.

    Whole key blocks are kept, at least one of each query block; where all query blocks have the
    same keys, some keep one block more than others, so that the share is met.

    Raises:
        SparsifyError: the density is not above 0 and at most 1.
    """
    if not 0 < density <= 1:
        raise SparsifyError(f"density {density:g}: give a number above 0, at most 1")
    kept = tuple(
        row
        for keys, blocks in workload.histogram
        for row in _thinned(workload, keys, blocks, density)
    )
    return replace(workload, kept=kept, seen=workload.kept_keys if workload.kept else 0)


def _thinned(
    workload: Workload, keys: int, blocks: int, density: float
) -> Iterator[tuple[int, int]]:
    """Rows of a histogram in the place of one: a share of the keys, in whole blocks."""
    k_block = workload.k_block
    columns = -(-keys // k_block)
    least, more = divmod(max(round(density * columns * blocks), blocks), blocks)
    for count, rows in ((least, blocks - more), (least + 1, more)):
        if rows:
            yield min(count * k_block, keys), rows


def choosing(workload: Workload) -> SelectorWork:
    """What choosing blocks by the mean keys of blocks takes: a score of every query and block."""
    w = workload
    columns = -(-w.k_length // w.k_block)
    scores = w.batch * w.heads * w.q_length * columns
    return SelectorWork(
        macs=scores * w.head_dim,
        scores=scores,
        choices=w.blocks * columns,
        calls=2,
        elements=w.batch * w.head_dim * (w.heads * w.q_length + w.kv_heads * w.k_length),
    )
