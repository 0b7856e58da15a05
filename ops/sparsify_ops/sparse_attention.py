"""The operator SparseAttention: its inputs, its attributes, and its definition in standard ops.

The body with all features is the specification. A written model carries a body with only the
features that its nodes use, so that it is fast where no kernel of ours is installed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import FunctionProto, helper

from sparsify.builder import Builder
from sparsify_ops.body_combine import attend
from sparsify_ops.body_limits import check_body
from sparsify_ops.body_scope import Scope

FEATURES: frozenset[str] = frozenset(
    {
        "selection",  # block_indices, block_count, q_block, k_block
        "attn_mask",
        "attn_bias",
        "key_lengths",
        "sinks",
        "query_offset",  # only with causal or window
        "causal",
        "window",
        "softcap",
        "residual",  # only with selection
        "gathered",  # residual groups of another size than k_block
        "iso",  # residual 2
        "gqa",  # Hq differs from Hkv
    }
)
"""All features: what a body can be asked to support."""

_INPUTS = (
    "Q",
    "K",
    "V",
    "block_indices",
    "block_count",
    "attn_mask",
    "attn_bias",
    "key_lengths",
    "sinks",
    "query_offset",
)


def _neutral_attributes() -> dict[str, int | float]:
    return {
        "q_block": 64,
        "k_block": 64,
        "scale": 1.0,
        "softcap": 0.0,
        "is_causal": 0,
        "left_window_size": -1,
        "right_window_size": -1,
        "residual": 0,
        "residual_block": 0,
    }


@dataclass(frozen=True)
class SparseAttention:
    """Attention that computes the selected score blocks and lets the others answer as groups."""

    name: str = "SparseAttention"
    domain: str = "ai.sparsify"
    version: int = 1
    inputs: tuple[str, ...] = _INPUTS
    outputs: tuple[str, ...] = ("Y",)
    attributes: Mapping[str, int | float] = field(default_factory=_neutral_attributes)

    def function(self, opset: int, dtype: int, uses: frozenset[str]) -> FunctionProto:
        """Give the body for Q of type `dtype` that supports exactly the features `uses`.

        It imports exactly `opset` of ai.onnx and reads no input that `uses` does not name.
        """
        check_body(self.name, opset, dtype, uses, FEATURES)
        builder = Builder(opset, "", frozenset({*self.inputs, *self.outputs}))
        attend(Scope(builder, dtype, uses))
        return helper.make_function(
            self.domain,
            self.name,
            inputs=list(self.inputs),
            outputs=list(self.outputs),
            nodes=builder.nodes,
            opset_imports=[helper.make_opsetid("", opset)],
            attributes=list(self.attributes),
        )


SPARSE_ATTENTION = SparseAttention()
"""The operator, as its entry point names it."""
