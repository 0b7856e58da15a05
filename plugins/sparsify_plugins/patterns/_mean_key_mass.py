"""The nodes that predict how much attention each query block gives to each key block."""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from sparsify.builder import Builder
from sparsify.pattern import SiteInputs


@dataclass(frozen=True)
class Sizes:
    """Lengths in tokens and blocks, as names of 0-D int64 tensors, and the blocks themselves."""

    q_block: int
    k_block: int
    q_length: str
    k_length: str
    q_blocks: str
    k_blocks: str


def emit_sizes(builder: Builder, inputs: SiteInputs, q_block: int, k_block: int) -> Sizes:
    """Read the lengths of queries and keys at run time."""
    q_length, k_length = builder.dim(inputs.query, 2), builder.dim(inputs.key, 2)
    q_blocks = builder.ceil_div(q_length, builder.constant(q_block, np.int64))
    k_blocks = builder.ceil_div(k_length, builder.constant(k_block, np.int64))
    return Sizes(q_block, k_block, q_length, k_length, q_blocks, k_blocks)


def emit_mass(builder: Builder, inputs: SiteInputs, sizes: Sizes) -> str:
    """Write the predicted mass of every block: float [B, Hq, q_blocks, k_blocks]."""
    scores = _scores(builder, inputs, _query_and_one(builder, inputs, sizes), sizes)
    if inputs.causal:
        scores = builder.op("Add", scores, _causal_bias(builder, sizes))
    return _sum_rows(builder, sizes, builder.softmax(scores))


def _as_float(builder: Builder, inputs: SiteInputs, name: str) -> str:
    if inputs.element_type == TensorProto.FLOAT:
        return name
    return builder.cast(name, TensorProto.FLOAT)


def _missing(builder: Builder, length: str, blocks: str, block: int) -> str:
    """Count what the last block lacks, as a 1-D tensor."""
    full = builder.op("Mul", blocks, builder.constant(block, np.int64))
    return builder.unsqueeze(builder.op("Sub", full, length), [0])


def _query_and_one(builder: Builder, inputs: SiteInputs, sizes: Sizes) -> str:
    """Pad the queries to whole blocks, and each with a 1 that will meet the key block's log n.

    So the product adds log n, and no pass over all scores has to.
    """
    missing = _missing(builder, sizes.q_length, sizes.q_blocks, sizes.q_block)
    pads = builder.concat([builder.ints(0, 0, 0, 0, 0, 0), missing, builder.ints(1)], 0)
    return builder.op("Pad", _as_float(builder, inputs, inputs.query), pads, builder.scalar(1))


def _means_and_log(builder: Builder, inputs: SiteInputs, sizes: Sizes) -> str:
    """Write scale * mean key, then log n, of every key block: float [B, Hkv, k_blocks, D + 1]."""
    missing = _missing(builder, sizes.k_length, sizes.k_blocks, sizes.k_block)
    pads = builder.concat([builder.ints(0, 0, 0, 0, 0, 0), missing, builder.ints(0)], 0)
    key = builder.op("Pad", _as_float(builder, inputs, inputs.key), pads)
    k_blocks = builder.unsqueeze(sizes.k_blocks, [0])
    shape = builder.concat([builder.ints(0, 0), k_blocks, builder.ints(sizes.k_block, -1)], 0)
    sums = builder.reduce("ReduceSum", builder.reshape(key, shape), [3], keepdims=False)
    keys = builder.unsqueeze(_keys_per_block(builder, sizes), [1])
    means = builder.op("Mul", sums, builder.op("Div", builder.scalar(inputs.scale), keys))
    column = builder.concat([builder.dims(inputs.key, 0, 1), k_blocks, builder.ints(1)], 0)
    return builder.concat([means, builder.op("Expand", builder.op("Log", keys), column)], 3)


def _keys_per_block(builder: Builder, sizes: Sizes) -> str:
    """Count the keys of each block, the last one possibly short: float [k_blocks]."""
    block = builder.constant(sizes.k_block, np.int64)
    first = builder.op("Mul", builder.arange(sizes.k_blocks), block)
    count = builder.op("Min", builder.op("Sub", sizes.k_length, first), block)
    return builder.cast(count, TensorProto.FLOAT)


def _scores(builder: Builder, inputs: SiteInputs, query: str, sizes: Sizes) -> str:
    """Multiply; heads that share a key head stand below one another, which moves no data."""
    means = builder.transpose(_means_and_log(builder, inputs, sizes), [0, 1, 3, 2])
    if inputs.group == 1:
        return builder.op("MatMul", query, means)
    batch_heads, width = builder.dims(inputs.key, 0, 1), builder.dims(query, 3)
    stacked = builder.reshape(query, builder.concat([batch_heads, builder.ints(-1), width], 0))
    scores = builder.op("MatMul", stacked, means)
    k_blocks = builder.unsqueeze(sizes.k_blocks, [0])
    apart = [builder.dims(inputs.query, 0, 1), builder.ints(-1), k_blocks]
    return builder.reshape(scores, builder.concat(apart, 0))


def _causal_bias(builder: Builder, sizes: Sizes) -> str:
    """Write 0 where a block's first key does not lie after the query, else -inf, for every head.

    Added, because a Where on all scores takes several times as long in ONNX Runtime.
    """
    q_block, k_block = (builder.constant(n, np.int64) for n in (sizes.q_block, sizes.k_block))
    rows = builder.arange(builder.op("Mul", sizes.q_blocks, q_block))
    first_key = builder.op("Mul", builder.arange(sizes.k_blocks), k_block)
    seen = builder.op("LessOrEqual", first_key, builder.unsqueeze(rows, [1]))
    return builder.op("Where", seen, builder.scalar(0), builder.scalar(float("-inf")))


def _sum_rows(builder: Builder, sizes: Sizes, weights: str) -> str:
    """Add up the rows of each query block; a product with ones, and zeros where rows are padding.

    This is faster than a sum that first had to cut the padding off.
    """
    rows = builder.arange(
        builder.op("Mul", sizes.q_blocks, builder.constant(sizes.q_block, np.int64))
    )
    real = builder.cast(builder.op("Less", rows, sizes.q_length), TensorProto.FLOAT)
    k_blocks = builder.unsqueeze(sizes.k_blocks, [0])
    shape = builder.concat([builder.ints(0, 0, -1, sizes.q_block), k_blocks], 0)
    tiles = builder.reshape(weights, shape)
    summed = builder.op("MatMul", builder.reshape(real, [-1, 1, sizes.q_block]), tiles)
    return builder.squeeze(summed, [3])
