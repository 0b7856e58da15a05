"""For which opsets, element types and features an operator has a body."""

import onnx
from onnx import TensorProto

from sparsify.errors import SparsifyError

OLDEST_OPSET = 12
"""The first in which a Constant can hold an attribute of the function."""

DTYPES: frozenset[int] = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})


def check_body(
    operator: str, opset: int, dtype: int, uses: frozenset[str], features: frozenset[str]
) -> None:
    """Refuse a body that cannot be written.

    Raises:
        SparsifyError: the opset, the type of Q or a feature is none that the operator has.
    """
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise SparsifyError(
            f"{operator} has no body for ai.onnx opset {opset}: "
            f"convert the model to an opset from {OLDEST_OPSET} to {newest} first"
        )
    if dtype not in DTYPES:
        raise SparsifyError(
            f"{operator} takes float, float16 and bfloat16, not TensorProto type {dtype}: "
            "leave this attention as it is"
        )
    if dtype == TensorProto.BFLOAT16 and opset == OLDEST_OPSET:
        raise SparsifyError(
            "ai.onnx opset 12 has no bfloat16: convert the model to opset 13 or later first"
        )
    if unknown := sorted(uses - features):
        raise SparsifyError(
            f"{operator} has no feature {', '.join(unknown)}: "
            f"choose from {', '.join(sorted(features))}"
        )
