"""One attention to measure: its sizes, what it computes, and random numbers for it."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Arrays = dict[str, npt.NDArray[Any]]
Mask = Literal["", "bias", "padding"]

PADDING = 32
"""One key of so many is padding where a case has a key-padding mask."""


@dataclass(frozen=True)
class Blocks:
    """Which key blocks are computed: a share of them, in blocks of 64 queries by `k_block` keys."""

    density: float
    k_block: int
    q_block: int = 64


@dataclass(frozen=True)
class Problem:
    """One attention, batch 1; without `blocks` every score is computed."""

    queries: int
    keys: int
    dim: int = 64
    heads: int = 8
    kv_heads: int = 8
    dtype: str = "float32"
    causal: bool = False
    window: int | None = None
    """How many keys before its own a query sees at most; only with `causal`."""
    mask: Mask = ""
    blocks: Blocks | None = None
    residual: int = 0
    bfloat16: bool = False
    """Whether ours multiplies in bfloat16."""

    @property
    def what(self) -> str:
        """What is computed, in words."""
        named = {"": "dense", "bias": "dense, additive mask", "padding": "dense, key padding"}
        extra = (", iso" if self.residual else "") + (", bfloat16" if self.bfloat16 else "")
        if self.blocks is None and self.causal:
            near = "" if self.window is None else f", window {self.window}"
            return f"causal{near}{extra}"
        if self.blocks is None:
            return named[self.mask] + extra
        return f"{self.blocks.density:.0%}, k_block {self.blocks.k_block}{extra}"

    @property
    def real_keys(self) -> int:
        """Keys that are no padding."""
        return self.keys - self.keys // PADDING if self.mask == "padding" else self.keys

    @property
    def permitted(self) -> float:
        """The share of the scores that the mask permits."""
        if not self.causal:
            return self.real_keys / self.keys
        seen = self.keys if self.window is None else min(self.keys, self.window + 1)
        return seen * (2 * self.keys - seen + 1) / (2 * self.keys**2)


def tokens(length: int, dim: int = 64, **more: Any) -> Problem:
    """Self-attention of `length` tokens."""
    return Problem(length, length, dim, **more)


def qkv(problem: Problem, seed: int = 0) -> Arrays:
    """Draw normal Q, K and V in our operator's layout, [1, H, S, D]."""
    rng = np.random.default_rng(seed)
    keys = (1, problem.kv_heads, problem.keys, problem.dim)
    sizes = {"Q": (1, problem.heads, problem.queries, problem.dim), "K": keys, "V": keys}
    return {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}


def bias(problem: Problem, seed: int = 0) -> Floats:
    """Draw normal numbers to add to the scores of all heads: none forbids, so none can be saved."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((1, 1, problem.queries, problem.keys), np.float32)


def padding(problem: Problem) -> npt.NDArray[np.bool_]:
    """Tell keys, True, from the padding behind them: [1, Sk]."""
    return np.arange(problem.keys)[None] < problem.real_keys


def tokens_first(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Lay [1, H, S, D] out for MultiHeadAttention, [1, S, H*D]."""
    rows = array.transpose(0, 2, 1, 3)
    return np.ascontiguousarray(rows.reshape(1, rows.shape[1], -1))


def selection(problem: Problem, blocks: Blocks, seed: int = 0) -> Arrays:
    """Draw another random list of key blocks for every head and query block.

    The block that holds the query block's first token is always kept. Counts differ by at most one
    between rows and add up to the density, so that the actual share is the nominal one.
    """
    rows, columns = -(-problem.queries // blocks.q_block), -(-problem.keys // blocks.k_block)
    rng = np.random.default_rng(seed)
    count = _counts(problem.heads * rows, columns, blocks.density, rng)
    count = count.reshape(problem.heads, rows)
    indices = np.full((1, problem.heads, rows, count.max()), -1, dtype=np.int32)
    for head, row in np.ndindex(problem.heads, rows):
        order = rng.permutation(columns)
        own = row * blocks.q_block // blocks.k_block
        kept = [own, *order[order != own][: count[head, row] - 1]]
        indices[0, head, row, : len(kept)] = sorted(kept)
    return {"block_indices": indices, "block_count": count[None].astype(np.int32)}


def _counts(
    rows: int, columns: int, density: float, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    least, more = divmod(round(density * rows * columns), rows)
    count = np.full(rows, least, dtype=np.int64)
    count[rng.permutation(rows)[:more]] += 1
    return np.maximum(count, 1)


def density(problem: Problem, kept: npt.NDArray[Any] | None) -> float:
    """The share of the scores that is computed, given the counts of kept blocks, if there are."""
    if problem.blocks is None or kept is None:
        return problem.permitted
    columns = -(-problem.keys // problem.blocks.k_block)
    return float(kept.mean() / columns)
