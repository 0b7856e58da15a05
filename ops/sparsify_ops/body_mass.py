"""What the bodies of MeanKeyMass and QuantizedMass share: sizes, positions, products, sums of rows.

Shapes as in `body_scope`; R is Nq * q_block, the rows of whole query blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from onnx import TensorProto

from sparsify_ops.body_scope import Scope

FEATURES: frozenset[str] = frozenset({"causal", "query_offset", "gqa"})
"""What a body can be asked to support; query_offset only with causal, gqa where Hq is not Hkv."""

INPUTS = ("Q", "K", "query_offset")


def neutral_attributes() -> Mapping[str, int | float]:
    """Give every attribute that both operators have, with its neutral value."""
    return {"q_block": 64, "k_block": 16, "scale": 1.0, "is_causal": 0}


@dataclass(frozen=True, eq=False)
class Mass(Scope):
    """The body of an operator that tells how much attention blocks of queries give to blocks."""

    @property
    def causal(self) -> bool:
        """Whether rows see the keys up to their position."""
        return "causal" in self.uses

    @cached_property
    def padded_rows(self) -> str:
        """R, 0-D."""
        return self.b.op("Mul", self.q_blocks, self.q_block)

    @cached_property
    def positions(self) -> str:
        """The position of each row among the keys, at least 0: [R], or [B or 1, 1, R]."""
        rows = self.b.arange(self.padded_rows)
        if "query_offset" not in self.uses:
            return rows
        placed = self.b.op("Add", rows, self.b.unsqueeze("query_offset", [1, 2]))
        return self.b.op("Max", placed, self.integer(0))

    @cached_property
    def first_keys(self) -> str:
        """The first key of each block: [Nk]."""
        return self.b.op("Mul", self.b.arange(self.k_blocks), self.k_block)

    @cached_property
    def block_lengths(self) -> str:
        """The keys of each block, of which the last may be short: [Nk]."""
        left = self.b.op("Sub", self.sk, self.first_keys)
        return self.b.op("Min", left, self.k_block)

    def padding(self, axis: int, rank: int, size: str, whole: str) -> str:
        """Give the `pads` that fill one axis of `size` up to `whole`, both 0-D."""
        zeros = [self.b.ints(0)] * (2 * rank)
        zeros[rank + axis] = self.one(self.b.op("Sub", whole, size))
        return self.b.concat(zeros, 0)

    def causal_bias(self, keys: str) -> str:
        """Write 0 where a key does not lie after the row, else -inf: [R, n] or [B or 1, 1, R, n].

        Added, because a Where on all scores takes several times as long in ONNX Runtime.
        """
        seen = self.b.op("LessOrEqual", keys, self._column(self.positions))
        return self.b.op("Where", seen, self.b.scalar(0), self.b.scalar(float("-inf")))

    def _column(self, positions: str) -> str:
        return self.b.unsqueeze(positions, [3 if "query_offset" in self.uses else 1])

    def seen_keys(self) -> str:
        """How many keys of a block a row sees, at least 1, float: [Nk], [R, Nk] or with a batch."""
        count = self.block_lengths
        if self.causal:
            one = self.integer(1)
            upto = self.b.op(
                "Sub", self.b.op("Add", self._column(self.positions), one), self.first_keys
            )
            count = self.b.op("Max", self.b.op("Min", upto, count), one)
        return self.b.cast(count, TensorProto.FLOAT)

    def product(self, query: str, key: str) -> str:
        """Multiply [B, Hq, R, n] by [B, Hkv, m, n], transposed: [B, Hq, R, m].

        Heads that share a key head stand below one another, which moves no data.
        """
        b = self.b
        across = b.transpose(key, [0, 1, 3, 2])
        if "gqa" not in self.uses:
            return b.op("MatMul", query, across)
        stacked = [b.dims(key, 0, 1), b.ints(-1), b.dims(query, 3)]
        scores = b.op("MatMul", b.reshape(query, b.concat(stacked, 0)), across)
        apart = [b.dims(query, 0, 1, 2), b.dims(key, 2)]
        return b.reshape(scores, b.concat(apart, 0))

    def sum_rows(self, x: str) -> str:
        """Add up the rows of each query block: [B, Hq, R, Nk] to [B, Hq, Nq, Nk].

        A product with ones, and with zeros where rows are padding, is faster than a sum that first
        has to cut the padding off.
        """
        b = self.b
        real = b.cast(b.op("Less", b.arange(self.padded_rows), self.sq), TensorProto.FLOAT)
        ones = b.reshape(real, b.concat([b.ints(-1, 1), self.one(self.q_block)], 0))
        tiles = self.split(x, 4, 2, self.q_blocks, self.q_block)
        return b.squeeze(b.op("MatMul", ones, tiles), [3])

    def by_key_block(self, x: str) -> str:
        """[B, Hq, R, Sk] as [B, Hq, R, Nk, k_block], zeros behind the last key."""
        whole = self.b.op("Mul", self.k_blocks, self.k_block)
        padded = self.b.op("Pad", x, self.padding(3, 4, self.sk, whole))
        return self.split(padded, 4, 3, self.k_blocks, self.k_block)

    def whole_blocks(self, x: str, *, extra: int = 0) -> str:
        """Fill [B, Hq, Sq, n] with ones to R rows, and with `extra` columns of ones."""
        pads = self.padding(2, 4, self.sq, self.padded_rows)
        if extra:
            column = self.b.constant(np.eye(8, dtype=np.int64)[7] * extra, np.int64)
            pads = self.b.op("Add", pads, column)
        return self.b.op("Pad", x, pads, self.b.scalar(1))
