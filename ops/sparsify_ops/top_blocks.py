"""The operators TopKBlocks and TopPBlocks: from scores of blocks to a selection of them.

Both answer `block_indices` and `block_count` as SparseAttention takes them: int32, ascending,
padded with -1. Where scores are equal, the lower index wins.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import FunctionProto, TensorProto, helper

from sparsify.builder import Builder
from sparsify.selection import emit_ascending
from sparsify_ops.body_limits import check_body
from sparsify_ops.body_scope import Scope

OUTPUTS = ("block_indices", "block_count")


@dataclass(frozen=True)
class TopKBlocks:
    """Select, of scores float32 [B, H, Nq, Nk], the `count` highest of each row.

    `count` int64, broadcastable to [B, H, Nq], is taken to lie in 1 .. Nk; C is the largest.
    Feature "ragged": rows may count differently.
    """

    name: str = "TopKBlocks"
    domain: str = "ai.sparsify"
    version: int = 1
    inputs: tuple[str, ...] = ("scores", "count")
    outputs: tuple[str, ...] = OUTPUTS
    attributes: Mapping[str, int | float] = field(default_factory=dict)

    def function(self, opset: int, dtype: int, uses: frozenset[str]) -> FunctionProto:
        """Give the body; scores are float32 whatever the `dtype` of Q."""
        check_body(self.name, opset, dtype, uses, frozenset({"ragged"}))
        builder = Builder(opset, "", frozenset({*self.inputs, *self.outputs}))
        _top_k(builder, ragged="ragged" in uses)
        return _function(self, builder)


@dataclass(frozen=True)
class TopPBlocks:
    """Select, of scores float32 [B, H, Nq, Nk], the fewest of each row that reach a share of it.

    Blocks are taken by falling score until their sum reaches `tau` times the row's; C is Nk. The
    sums are float32, one after another. Scores are taken to be at least 0.
    """

    name: str = "TopPBlocks"
    domain: str = "ai.sparsify"
    version: int = 1
    inputs: tuple[str, ...] = ("scores",)
    outputs: tuple[str, ...] = OUTPUTS
    attributes: Mapping[str, int | float] = field(default_factory=lambda: {"tau": 1.0})

    def function(self, opset: int, dtype: int, uses: frozenset[str]) -> FunctionProto:
        """Give the body; scores are float32 whatever the `dtype` of Q."""
        check_body(self.name, opset, dtype, uses, frozenset())
        builder = Builder(opset, "", frozenset({*self.inputs, *self.outputs}))
        _top_p(Scope(builder, dtype, uses))
        return _function(self, builder)


def _function(operator: TopKBlocks | TopPBlocks, builder: Builder) -> FunctionProto:
    return helper.make_function(
        operator.domain,
        operator.name,
        inputs=list(operator.inputs),
        outputs=list(operator.outputs),
        nodes=builder.nodes,
        opset_imports=[helper.make_opsetid("", builder.opset)],
        attributes=list(operator.attributes),
    )


def _top_k(b: Builder, *, ragged: bool) -> None:
    k_blocks = b.dim("scores", 3)
    count = b.op("Max", b.op("Min", "count", k_blocks), b.constant(1, np.int64))
    count = b.op("Expand", count, b.dims("scores", 0, 1, 2))
    capacity = b.unsqueeze(b.reduce("ReduceMax", count, [0, 1, 2], keepdims=False), [0])
    # where every row keeps as many, their order does not matter, and not to sort is faster
    order = {"axis": -1, "sorted": int(ragged)}
    ids = b.node("TopK", ["scores", capacity], order, outputs=2)[1]
    if ragged:
        ids = _first(b, ids, count, capacity, k_blocks)
    _select(b, ids, count, capacity, k_blocks)


def _top_p(scope: Scope) -> None:
    b = scope.b
    k_blocks = b.dim("scores", 3)
    capacity = b.unsqueeze(k_blocks, [0])
    falling, ids = b.node("TopK", ["scores", capacity], {"axis": -1}, outputs=2)
    reached = b.op("CumSum", falling, b.constant(3, np.int64))
    total = b.reduce("ReduceMax", reached, [3], keepdims=True)
    wanted = b.op("Mul", total, scope.float_attribute("tau"))
    needed = b.op("Less", b.op("Sub", reached, falling), wanted)
    count = b.reduce("ReduceSum", b.cast(needed, TensorProto.INT64), [3], keepdims=False)
    count = b.op("Max", count, b.constant(1, np.int64))
    _select(b, _first(b, ids, count, capacity, k_blocks), count, capacity, k_blocks)


def _first(b: Builder, ids: str, count: str, capacity: str, k_blocks: str) -> str:
    """Keep the first `count` ids of each row; `k_blocks` stands for the others."""
    rank = b.arange(b.squeeze(capacity, [0]))
    return b.op("Where", b.op("Less", rank, b.unsqueeze(count, [3])), ids, k_blocks)


def _select(b: Builder, ids: str, count: str, capacity: str, k_blocks: str) -> None:
    indices = emit_ascending(b, ids, capacity, k_blocks)
    b.node("Identity", [indices], outputs=["block_indices"])
    b.node("Cast", [count], {"to": TensorProto.INT32}, outputs=["block_count"])


TOP_K_BLOCKS = TopKBlocks()
TOP_P_BLOCKS = TopPBlocks()
"""The operators, as their entry points name them."""
