"""The contract of patterns: what a pattern is given, and the selection it answers with.

A pattern is a plain object with the fields `q_block` and `k_block` and exactly one of three
methods, by how much it has to know:

* `rule(blocks) -> mask`: arithmetic on positions, valid for every length;
* `keep(grid) -> ndarray`: a boolean grid for one length;
* `emit(builder, inputs) -> Selection`: nodes that look at the data.

All other fields are its options (`--pattern window:size=512`).
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sparsify.builder import Builder
from sparsify.errors import SparsifyError

_MOST_BLOCKS = 2**30
"""Blocks of one grid at most: a GiB of truth values."""


@dataclass(frozen=True)
class Grid:
    """The block grid of one site at one length: queries and keys in tokens, blocks in tokens.

    `offset` is the position of query 0 among the keys; with `causal`, a query at position p may
    see the keys up to p.
    """

    heads: int
    kv_heads: int
    q_len: int
    k_len: int
    q_block: int
    k_block: int
    offset: int = 0
    causal: bool = False

    @property
    def q_blocks(self) -> int:
        """Number of query blocks, the last one possibly short."""
        return -(-self.q_len // self.q_block)

    @property
    def k_blocks(self) -> int:
        """Number of key blocks, the last one possibly short."""
        return -(-self.k_len // self.k_block)

    def check_size(self) -> None:
        """Refuse arrays of more blocks than memory should be spent on.

        Raises:
            SparsifyError: there are too many blocks.
        """
        if self.q_blocks * self.k_blocks > _MOST_BLOCKS:
            raise SparsifyError(
                f"a grid of {self.q_blocks} x {self.k_blocks} blocks is too large; name a shorter "
                "--max-length or larger blocks"
            )

    def permitted_blocks(self) -> npt.NDArray[np.int64]:
        """[q_blocks]: how many blocks of keys each block of queries may see some key of."""
        if not self.causal:
            return np.full(self.q_blocks, self.k_blocks, dtype=np.int64)
        last_query = np.minimum((np.arange(self.q_blocks) + 1) * self.q_block, self.q_len) - 1
        seen = (last_query + self.offset) // self.k_block + 1
        return np.asarray(np.clip(seen, 0, self.k_blocks), dtype=np.int64)

    def permitted(self) -> npt.NDArray[np.bool_]:
        """[q_blocks, k_blocks]: blocks in which some query may see some key."""
        self.check_size()
        if not self.causal:
            return np.ones((self.q_blocks, self.k_blocks), dtype=bool)
        last_query = np.minimum((np.arange(self.q_blocks) + 1) * self.q_block, self.q_len) - 1
        first_key = np.arange(self.k_blocks) * self.k_block
        return np.asarray(first_key[None, :] <= (last_query + self.offset)[:, None])


class Value(Protocol):
    """Integers or booleans, one per block: a numpy array, or nodes of a graph behind operators.

    Use `+ - * //` with integers, comparisons, `&` and `|`. There is no `abs`, no `==`, no `not`:
    a rule written with these runs unchanged on both.
    """

    def __add__(self, other: "Value | int") -> "Value": ...
    def __sub__(self, other: "Value | int") -> "Value": ...
    def __mul__(self, other: "Value | int") -> "Value": ...
    def __floordiv__(self, other: "Value | int") -> "Value": ...
    def __le__(self, other: "Value | int") -> "Value": ...
    def __lt__(self, other: "Value | int") -> "Value": ...
    def __ge__(self, other: "Value | int") -> "Value": ...
    def __gt__(self, other: "Value | int") -> "Value": ...
    def __and__(self, other: "Value") -> "Value": ...
    def __or__(self, other: "Value") -> "Value": ...


@dataclass(frozen=True)
class Blocks:
    """Positions that a rule may use, broadcastable to `[q_blocks, k_blocks]`.

    `q_first` and `q_last` are the positions among the keys of a block's first and last query (the
    site's offset included; `q_last` of a short block counts the missing queries), `k_first` and
    `k_last` those of a block's keys. `q_length` and `k_length` are the lengths in tokens.
    """

    q_first: Value
    q_last: Value
    k_first: Value
    k_last: Value
    q_length: Value
    k_length: Value


@dataclass(frozen=True)
class SiteInputs:
    """What a dynamic pattern may read: names of tensors in the graph, and the site's constants.

    `query` is `[B, Hq, Sq, D]`, `key` `[B, Hkv, Sk, D]`, `value` `[B, Hkv, Sk, Dv]`, all of
    `element_type`. `group` is Hq / Hkv. `query_offset` is query 0's position among the keys, int64
    `[B or 1]`; None where it is 0.
    """

    query: str
    key: str
    value: str
    scale: float
    group: int
    causal: bool
    element_type: int
    query_offset: str | None = None


@dataclass(frozen=True)
class Selection:
    """Names of the two tensors a pattern yields.

    `block_indices` int32 `[B or 1, Hq or 1, Nq, C]`, ascending, padded with -1; `block_count`
    int32 `[B or 1, Hq or 1, Nq]`, -1 where every block is kept.
    """

    block_indices: str
    block_count: str


@runtime_checkable
class RulePattern(Protocol):
    """A pattern that is arithmetic on positions."""

    @property
    def q_block(self) -> int: ...
    @property
    def k_block(self) -> int: ...
    def rule(self, blocks: Blocks) -> Value:
        """Which blocks to keep, a boolean per block."""
        ...


@runtime_checkable
class GridPattern(Protocol):
    """A pattern that is a boolean grid for one length."""

    @property
    def q_block(self) -> int: ...
    @property
    def k_block(self) -> int: ...
    def keep(self, grid: Grid) -> npt.NDArray[np.bool_]:
        """The kept blocks, `[heads or 1, q_blocks, k_blocks]`."""
        ...


@runtime_checkable
class DynamicPattern(Protocol):
    """A pattern that computes its selection from the data, as nodes of the graph."""

    @property
    def q_block(self) -> int: ...
    @property
    def k_block(self) -> int: ...
    def emit(self, builder: Builder, inputs: SiteInputs) -> Selection:
        """Write the nodes that compute the selection; the last block of queries may be short."""
        ...


Pattern = RulePattern | GridPattern | DynamicPattern
