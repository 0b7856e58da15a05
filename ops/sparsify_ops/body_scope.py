"""What every section of the SparseAttention body shares: inputs, attributes, sizes, row numbers.

Each property writes its nodes when it is first read, so a body holds only what it uses.
Shapes below are those of the operator's inputs: B batch, Hq query heads, Hkv key heads, Sq queries,
Sk keys, D and Dv components, Nq query blocks, Nk key blocks, NG residual groups of g keys.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from onnx import AttributeProto, TensorProto

from sparsify.builder import Builder

FAR = 2**62
"""A position beyond every key: no limit."""


@dataclass(frozen=True, eq=False)
class Scope:
    """The body under construction: where nodes go, the type of Q, the features in use."""

    b: Builder
    dtype: int
    uses: frozenset[str]

    # Inputs, in float32 -------------------------------------------------------------------------

    @cached_property
    def q(self) -> str:
        """[B, Hq, Sq, D], times `scale`: scaling D columns of Q beats scaling Sk of scores."""
        return self.b.op("Mul", self.to_float("Q"), self.float_attribute("scale"))

    @cached_property
    def k(self) -> str:
        """[B, Hkv, Sk, D]."""
        return self.to_float("K")

    @cached_property
    def v(self) -> str:
        """[B, Hkv, Sk, Dv]."""
        return self.to_float("V")

    @cached_property
    def bias(self) -> str:
        """Broadcastable to [B, Hq, Sq, Sk]."""
        return self.to_float("attn_bias")

    def to_float(self, x: str) -> str:
        """`x` in float32, in which every body computes."""
        return x if self.dtype == TensorProto.FLOAT else self.b.cast(x, TensorProto.FLOAT)

    # Attributes ---------------------------------------------------------------------------------

    def int_attribute(self, name: str) -> str:
        """Give the node's value of an int attribute, 0-D int64."""
        return self.b.attribute_reference(name, AttributeProto.INT)

    def float_attribute(self, name: str) -> str:
        """Give the node's value of a float attribute, 0-D float32."""
        return self.b.attribute_reference(name, AttributeProto.FLOAT)

    @cached_property
    def q_block(self) -> str:
        """Queries per block, 0-D."""
        return self.int_attribute("q_block")

    @cached_property
    def k_block(self) -> str:
        """Keys per block, 0-D."""
        return self.int_attribute("k_block")

    @cached_property
    def residual(self) -> str:
        """0 none, 1 mean, 2 iso; 0-D."""
        return self.int_attribute("residual")

    @cached_property
    def group(self) -> str:
        """Keys per residual group: `residual_block`, or `k_block` where that is 0; 0-D."""
        if "gathered" not in self.uses:
            return self.k_block
        own = self.int_attribute("residual_block")
        return self.b.op("Where", self.b.op("Greater", own, self.integer(0)), own, self.k_block)

    # Sizes and numberings -----------------------------------------------------------------------

    def integer(self, value: int) -> str:
        """Give a 0-D int64 constant."""
        return self.b.constant(value, np.int64)

    @cached_property
    def sq(self) -> str:
        """Sq, 0-D."""
        return self.b.dim("Q", 2)

    @cached_property
    def sk(self) -> str:
        """Sk, 0-D."""
        return self.b.dim("K", 2)

    @cached_property
    def q_blocks(self) -> str:
        """Nq, 0-D."""
        return self.b.ceil_div(self.sq, self.q_block)

    @cached_property
    def k_blocks(self) -> str:
        """Nk, 0-D."""
        return self.b.ceil_div(self.sk, self.k_block)

    @cached_property
    def groups(self) -> str:
        """NG, 0-D."""
        return self.b.ceil_div(self.sk, self.group)

    @cached_property
    def rows(self) -> str:
        """0 .. Sq-1."""
        return self.b.arange(self.sq)

    @cached_property
    def keys(self) -> str:
        """0 .. Sk-1."""
        return self.b.arange(self.sk)

    @cached_property
    def row_blocks(self) -> str:
        """The query block of each row: [Sq]."""
        return self.b.op("Div", self.rows, self.q_block)

    @cached_property
    def padded_rows(self) -> str:
        """Row numbers of whole query blocks, [Nq * q_block]; the last row stands in beyond Sq."""
        return self._padded(self.q_blocks, self.q_block, self.sq)

    @cached_property
    def padded_keys(self) -> str:
        """Key numbers of whole groups, [NG * g]; the last key stands in beyond Sk."""
        return self._padded(self.groups, self.group, self.sk)

    def _padded(self, blocks: str, block: str, size: str) -> str:
        count = self.b.arange(self.b.op("Mul", blocks, block))
        return self.b.op("Min", count, self.b.op("Sub", size, self.integer(1)))

    # Layouts ------------------------------------------------------------------------------------

    def one(self, x: str) -> str:
        """Give a 0-D tensor as 1-D, to stand in a shape."""
        return self.b.reshape(x, [1])

    def split(self, x: str, rank: int, axis: int, parts: str, size: str) -> str:
        """Reshape `axis` of `x` (of `rank`) into [parts, size], both 0-D."""
        shape = [self.one(parts), self.one(size)]
        if axis > 0:
            shape.insert(0, self.b.dims(x, *range(axis)))
        if axis + 1 < rank:
            shape.append(self.b.dims(x, *range(axis + 1, rank)))
        return self.b.reshape(x, self.b.concat(shape, 0))

    def by_query_block(self, x: str) -> str:
        """[b, h, Sq, n] as [b, h, Nq, q_block, n]."""
        padded = self.b.gather(x, self.padded_rows, 2)
        return self.split(padded, 4, 2, self.q_blocks, self.q_block)

    def from_query_block(self, x: str) -> str:
        """[b, h, Nq, q_block, n] as [b, h, Sq, n]."""
        shape = self.b.concat([self.b.dims(x, 0, 1), self.b.ints(-1), self.b.dims(x, 4)], 0)
        flat = self.b.reshape(x, shape)
        return self.b.slice(flat, self.b.ints(0), self.one(self.sq), 2)

    def by_group(self, x: str, rank: int, axis: int) -> str:
        """Axis `axis` of length Sk as [NG, g]."""
        padded = self.b.gather(x, self.padded_keys, axis)
        return self.split(padded, rank, axis, self.groups, self.group)

    def to_rows(self, x: str) -> str:
        """[b, h, Nq or 1, n] as [b, h, Sq, n]: every row its block's values."""
        last = self.b.op("Sub", self.b.dim(x, 2), self.integer(1))
        return self.b.gather(x, self.b.op("Min", self.row_blocks, last), 2)
