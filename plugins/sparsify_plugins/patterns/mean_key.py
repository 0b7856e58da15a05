"""Keeps, per query block, the key blocks to which its queries would give the most attention.

Every query meets the mean key of every block: softmax(scale * q . mean(k) + log n) predicts its
attention, and the predictions of a block's queries are added up. Queries are never averaged.
These are the scores that the operator's `residual` computes for the blocks left out.

Source: mean-pooled keys and the kept set by cumulative mass stand in SpargeAttn (Zhang et al. 2025,
arXiv 2502.18137) and FlexPrefill (Lai et al. 2025, arXiv 2502.20766), which pool queries as well;
taking the queries row by row is what our own measurements favoured.

Options: exactly one of `density`, the share of the key blocks that a query block may see and keeps
(one number, or one per query head), and `tau`, the predicted mass that the smallest kept set must
reach; `q_block` and `k_block` in tokens. Under causality, a key block that a query sees in part
counts whole; query 0 is taken to have position 0.
"""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from sparsify.builder import Builder
from sparsify.errors import SparsifyError
from sparsify.pattern import Selection, SiteInputs
from sparsify.selection import emit_ascending
from sparsify_plugins.patterns._mean_key_mass import Sizes, emit_mass, emit_sizes
from sparsify_plugins.patterns._options import check_integer, check_share, refuse

# Densities enter as millionths, so that counts are exact integers in every runtime.
_WHOLE = 1_000_000


@dataclass(frozen=True)
class MeanKey:
    """Keep a share of the key blocks (`density`), or what reaches a predicted mass (`tau`)."""

    density: float | tuple[float, ...] | None = None
    tau: float | None = None
    q_block: int = 64
    k_block: int = 16

    def __post_init__(self) -> None:
        if (self.density is None) == (self.tau is None):
            both = f"density={self.density!r} and tau={self.tau!r}"
            raise SparsifyError(f"pattern mean_key: {both}; give exactly one of them")
        if self.tau is not None:
            check_share("mean_key", "tau", self.tau)
        if self.density == ():
            raise refuse("mean_key", "density", self.density, "one number, or one per query head")
        for share in self._densities:
            check_share("mean_key", "density", share)
        for option in ("q_block", "k_block"):
            check_integer("mean_key", option, getattr(self, option), 1)

    @property
    def _densities(self) -> tuple[float, ...]:
        if self.density is None:
            return ()
        return self.density if isinstance(self.density, tuple) else (self.density,)

    def emit(self, builder: Builder, inputs: SiteInputs) -> Selection:
        """Write the prediction, and the choice of blocks by density or by mass."""
        sizes = emit_sizes(builder, inputs, self.q_block, self.k_block)
        mass = emit_mass(builder, inputs, sizes)
        if self.tau is not None:
            return _choose_by_mass(builder, sizes, mass, self.tau)
        return _choose_by_density(builder, inputs, sizes, mass, self._densities)


def _choose_by_density(
    builder: Builder, inputs: SiteInputs, sizes: Sizes, mass: str, densities: tuple[float, ...]
) -> Selection:
    shares = np.array([round(share * _WHOLE) for share in densities], dtype=np.int64)
    seen = _seen_blocks(builder, inputs, sizes)
    count = _share_of(builder, seen, builder.constant(shares.reshape(1, -1, 1), np.int64))
    largest = builder.constant([shares.max()], np.int64)
    capacity = _share_of(builder, sizes.k_blocks, largest)
    # Where every row keeps as many, their order does not matter, and not to sort is faster.
    order = {"axis": -1, "sorted": int(inputs.causal or len(densities) > 1)}
    ids = builder.node("TopK", [mass, capacity], order, outputs=2)[1]
    return _select(builder, sizes, ids, capacity, count)


def _share_of(builder: Builder, blocks: str, millionths: str) -> str:
    """Round `blocks * share` to the nearest integer, and up to 1."""
    half, whole = (builder.constant(n, np.int64) for n in (_WHOLE // 2, _WHOLE))
    rounded = builder.op("Add", builder.op("Mul", blocks, millionths), half)
    return builder.op("Max", builder.op("Div", rounded, whole), builder.constant(1, np.int64))


def _seen_blocks(builder: Builder, inputs: SiteInputs, sizes: Sizes) -> str:
    """Count the key blocks that each query block may see: int64 [q_blocks]."""
    if not inputs.causal:
        return builder.op("Expand", sizes.k_blocks, builder.unsqueeze(sizes.q_blocks, [0]))
    one = builder.constant(1, np.int64)
    rows = builder.constant(sizes.q_block, np.int64)
    end = builder.op("Mul", builder.op("Add", builder.arange(sizes.q_blocks), one), rows)
    end = builder.op("Min", end, sizes.q_length)
    seen = builder.ceil_div(end, builder.constant(sizes.k_block, np.int64))
    return builder.op("Min", seen, sizes.k_blocks)


def _choose_by_mass(builder: Builder, sizes: Sizes, mass: str, tau: float) -> Selection:
    capacity = builder.unsqueeze(sizes.k_blocks, [0])
    sorted_mass, ids = builder.node("TopK", [mass, capacity], {"axis": -1}, outputs=2)
    reached = builder.op("CumSum", sorted_mass, builder.constant(3, np.int64))
    total = builder.reduce("ReduceMax", reached, [3], keepdims=True)
    before = builder.op("Sub", reached, sorted_mass)
    needed = builder.op("Less", before, builder.op("Mul", total, builder.scalar(tau)))
    count = builder.reduce(
        "ReduceSum", builder.cast(needed, TensorProto.INT64), [3], keepdims=False
    )
    count = builder.op("Max", count, builder.constant(1, np.int64))
    return _select(builder, sizes, ids, capacity, count)


def _select(builder: Builder, sizes: Sizes, ids: str, capacity: str, count: str) -> Selection:
    """Keep the first `count` of the ids, which are in order of falling mass."""
    rank = builder.arange(builder.squeeze(capacity, [0]))
    chosen = builder.op("Less", rank, builder.unsqueeze(count, [3]))
    kept = builder.op("Where", chosen, ids, sizes.k_blocks)
    indices = emit_ascending(builder, kept, capacity, sizes.k_blocks)
    return Selection(indices, builder.cast(count, TensorProto.INT32))
