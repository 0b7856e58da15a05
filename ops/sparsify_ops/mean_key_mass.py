"""The operator MeanKeyMass: how much attention blocks of queries should give to blocks of keys.

Every query meets the mean key of every block: softmax(scale * q . mean(k) + log n) predicts its
attention, and the predictions of a block's queries are added up. Queries are never averaged. These
are the scores that SparseAttention's `residual` computes for the blocks left out.

Source: mean-pooled keys stand in SpargeAttn (Zhang et al. 2025, arXiv 2502.18137) and FlexPrefill
(Lai et al. 2025, arXiv 2502.20766), which pool queries as well; taking the queries row by row is
what our own measurements favoured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import FunctionProto, TensorProto, helper

from sparsify.builder import Builder
from sparsify_ops.body_limits import check_body
from sparsify_ops.body_mass import FEATURES, INPUTS, Mass, neutral_attributes


@dataclass(frozen=True)
class MeanKeyMass:
    """Q [B, Hq, Sq, D] and K [B, Hkv, Sk, D] to predicted mass, float32 [B, Hq, Nq, Nk].

    With `is_causal`, query i has position query_offset + i (`query_offset` int64 [B or 1]), and at
    least 0; a block that it sees in part counts whole.
    """

    name: str = "MeanKeyMass"
    domain: str = "ai.sparsify"
    version: int = 1
    inputs: tuple[str, ...] = INPUTS
    outputs: tuple[str, ...] = ("mass",)
    attributes: Mapping[str, int | float] = field(default_factory=neutral_attributes)

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
    # a column of ones in Q meets log n beside the mean keys: so the product adds it
    query = scope.whole_blocks(scope.to_float("Q"), extra=1)
    scores = scope.product(query, _means_and_log(scope))
    if scope.causal:
        scores = scope.b.op("Add", scores, scope.causal_bias(scope.first_keys))
    mass = scope.sum_rows(scope.b.softmax(scores))
    scope.b.node("Identity", [mass], outputs=["mass"])


def _means_and_log(scope: Mass) -> str:
    """Write scale * mean key, then log n, of every key block: float [B, Hkv, Nk, D + 1]."""
    b = scope.b
    whole = b.op("Mul", scope.k_blocks, scope.k_block)
    key = b.op("Pad", scope.to_float("K"), scope.padding(2, 4, scope.sk, whole))
    blocks = scope.split(key, 4, 2, scope.k_blocks, scope.k_block)
    sums = b.reduce("ReduceSum", blocks, [3], keepdims=False)
    lengths = b.unsqueeze(b.cast(scope.block_lengths, TensorProto.FLOAT), [1])
    means = b.op("Mul", sums, b.op("Div", scope.float_attribute("scale"), lengths))
    column = b.concat([b.dims(sums, 0, 1, 2), b.ints(1)], 0)
    return b.concat([means, b.op("Expand", b.op("Log", lengths), column)], 3)


MEAN_KEY_MASS = MeanKeyMass()
"""The operator, as its entry point names it."""
