"""The operator QuantizedMass: attention predicted from scores of few bits.

Queries, and keys less the mean key of their head, are rounded to `bits` bits with one step per
token; their products are scores, whose softmax predicts the attention. `mass` adds it up per block
of queries and block of keys. `spread` adds up, row by row, sum(p^2) - sum(p)^2 / n over a block's n
keys: zero where all weigh the same, so that times the variance of the values it ranks blocks by the
error of replacing them by their mean, not by their mass.

Source: predictions at low precision stand in Dynamic Sparse Attention (Liu et al. 2021, arXiv
2110.11299); ranking by the predicted error of the replacement is our own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import FunctionProto, TensorProto, helper

from sparsify.builder import Builder
from sparsify_ops.body_limits import check_body
from sparsify_ops.body_mass import FEATURES, INPUTS, Mass, neutral_attributes

_SMALLEST = 1e-30
"""A token whose largest component is smaller counts as zero."""


def _attributes() -> Mapping[str, int | float]:
    return {**neutral_attributes(), "bits": 4}


@dataclass(frozen=True)
class QuantizedMass:
    """Q [B, Hq, Sq, D] and K [B, Hkv, Sk, D] to mass and spread, float32 [B, Hq, Nq, Nk] each.

    `bits` from 2 to 8. With `is_causal`, query i has position query_offset + i (`query_offset`
    int64 [B or 1]), and at least 0; n counts the keys of a block that the row sees. The body holds
    scores for all pairs of tokens; a kernel need not.
    """

    name: str = "QuantizedMass"
    domain: str = "ai.sparsify"
    version: int = 1
    inputs: tuple[str, ...] = INPUTS
    outputs: tuple[str, ...] = ("mass", "spread")
    attributes: Mapping[str, int | float] = field(default_factory=_attributes)

    def function(self, opset: int, dtype: int, uses: frozenset[str]) -> FunctionProto:
        """Give the body for Q of type `dtype` that supports exactly the features `uses`."""
        check_body(self.name, opset, dtype, uses, FEATURES)
        builder = Builder(opset, "", frozenset({*self.inputs, *self.outputs}))
        _predict(Mass(builder, dtype, uses))
        return helper.make_function(
            self.domain,
            self.name,
            inputs=list(self.inputs),
            outputs=list(self.outputs),
            nodes=builder.nodes,
            opset_imports=[helper.make_opsetid("", opset)],
            attributes=list(self.attributes),
        )


def _predict(scope: Mass) -> None:
    b = scope.b
    weights = scope.by_key_block(b.softmax(_scores(scope)))
    sums = b.reduce("ReduceSum", weights, [4], keepdims=False)
    squares = b.reduce("ReduceSum", b.op("Mul", weights, weights), [4], keepdims=False)
    equal = b.op("Div", b.op("Mul", sums, sums), scope.seen_keys())
    spread = scope.sum_rows(b.op("Sub", squares, equal))
    b.node("Identity", [scope.sum_rows(sums)], outputs=["mass"])
    b.node("Max", [spread, b.scalar(0)], outputs=["spread"])


def _scores(scope: Mass) -> str:
    """Write the scores of the rounded tokens: float [B, Hq, R, Sk]."""
    b = scope.b
    query, q_step = _rounded(scope, scope.to_float("Q"))
    key, k_step = _rounded(scope, _centred(scope))
    scores = scope.product(scope.whole_blocks(query), key)
    row = b.op("Mul", scope.whole_blocks(q_step), scope.float_attribute("scale"))
    scores = b.op("Mul", b.op("Mul", scores, row), _per_query_head(scope, k_step))
    if scope.causal:
        scores = b.op("Add", scores, scope.causal_bias(scope.keys))
    return scores


def _centred(scope: Mass) -> str:
    """Subtract the mean key, which changes no softmax; in double, so that all round alike."""
    b, key = scope.b, scope.to_float("K")
    mean = b.reduce("ReduceMean", b.cast(key, TensorProto.DOUBLE), [2], keepdims=True)
    return b.op("Sub", key, b.cast(mean, TensorProto.FLOAT))


def _rounded(scope: Mass, x: str) -> tuple[str, str]:
    """Round tokens [.., D] to integers, as floats, and give their steps [.., 1]."""
    b = scope.b
    bits = b.cast(scope.int_attribute("bits"), TensorProto.FLOAT)
    half = b.op("Pow", b.scalar(2), b.op("Sub", bits, b.scalar(1)))
    levels = b.op("Sub", half, b.scalar(1))
    most = b.reduce("ReduceMax", b.op("Abs", x), [3], keepdims=True)
    most = b.op("Max", most, b.constant(_SMALLEST, np.float32))
    rounded = b.op("Round", b.op("Mul", x, b.op("Div", levels, most)))
    return rounded, b.op("Div", most, levels)


def _per_query_head(scope: Mass, steps: str) -> str:
    """[B, Hkv, Sk, 1] as [B, Hq, 1, Sk]."""
    b = scope.b
    row = b.transpose(steps, [0, 1, 3, 2])
    if "gqa" not in scope.uses:
        return row
    heads, kv_heads = b.dim("Q", 1), b.dim("K", 1)
    group = b.op("Div", heads, kv_heads)
    return b.gather(row, b.op("Div", b.arange(heads), group), 1)


QUANTIZED_MASS = QuantizedMass()
"""The operator, as its entry point names it."""
