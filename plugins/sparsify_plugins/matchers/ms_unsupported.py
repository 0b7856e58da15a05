"""Attention operators of ONNX Runtime that are named and left alone.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sparsify.site import Refusal
from sparsify.view import Scope, label

_TAKEN = ("Attention", "MultiHeadAttention", "GroupQueryAttention")


@dataclass(frozen=True)
class UnsupportedMatcher:
    """Refuses every fused attention that no matcher reads, so that none is passed in silence."""

    def match(self, scope: Scope) -> Iterator[Refusal]:
        """One refusal for each such node."""
        for node in scope.nodes():
            fused = node.domain == "com.microsoft" and node.op.endswith("Attention")
            if fused and node.op not in _TAKEN:
                reason = f"the operator {node.op} of ONNX Runtime is not supported"
                yield Refusal("fused_unsupported", reason, scope.name, (label(node),))


MATCHER = UnsupportedMatcher()
