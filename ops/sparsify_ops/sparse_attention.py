"""The operator SparseAttention: its inputs, its attributes, and its definition in standard ops.

The body with all features is the specification. A written model carries a body with only the
features that its nodes use, so that it is fast where no kernel of ours is installed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
from onnx import FunctionProto, TensorProto, helper

from sparsify.builder import Builder
from sparsify.errors import SparsifyError
from sparsify_ops.body_combine import attend
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

OLDEST_OPSET = 12
"""The first in which a Constant can hold an attribute of the function."""

DTYPES: frozenset[int] = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})

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
    attributes: Mapping[str, int | float] = field(default_factory=_neutral_attributes)

    def function(self, opset: int, dtype: int, uses: frozenset[str]) -> FunctionProto:
        """Give the body for Q of type `dtype` that supports exactly the features `uses`.

        It imports exactly `opset` of ai.onnx and reads no input that `uses` does not name.
        """
        _check(opset, dtype, uses)
        builder = Builder(opset, "", frozenset({*self.inputs, "Y"}))
        attend(Scope(builder, dtype, uses))
        return helper.make_function(
            self.domain,
            self.name,
            inputs=list(self.inputs),
            outputs=["Y"],
            nodes=builder.nodes,
            opset_imports=[helper.make_opsetid("", opset)],
            attributes=list(self.attributes),
        )


def _check(opset: int, dtype: int, uses: frozenset[str]) -> None:
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise SparsifyError(
            f"SparseAttention has no body for ai.onnx opset {opset}: "
            f"convert the model to an opset from {OLDEST_OPSET} to {newest} first"
        )
    if dtype not in DTYPES:
        raise SparsifyError(
            f"SparseAttention takes float, float16 and bfloat16, not TensorProto type {dtype}: "
            "leave this attention as it is"
        )
    if dtype == TensorProto.BFLOAT16 and opset == OLDEST_OPSET:
        raise SparsifyError(
            "ai.onnx opset 12 has no bfloat16: convert the model to opset 13 or later first"
        )
    if unknown := sorted(uses - FEATURES):
        raise SparsifyError(
            f"SparseAttention has no feature {', '.join(unknown)}: "
            f"choose from {', '.join(sorted(FEATURES))}"
        )


SPARSE_ATTENTION = SparseAttention()
"""The operator, as its entry point names it."""
