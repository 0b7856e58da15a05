"""The block diagonal alone: every query block sees the key blocks at its own positions.

Source: block-local attention as in Image Transformer (Parmar et al. 2018, arXiv 1802.05751); the
smallest selection that still keeps every token's own key.

Options, in tokens: `q_block` and `k_block`, which may differ.
"""

from dataclasses import dataclass

from sparsify.pattern import Blocks, Value
from sparsify_plugins.patterns._band import band
from sparsify_plugins.patterns._options import check_integer


@dataclass(frozen=True)
class Diagonal:
    """Keep the key blocks that share a position with the query block."""

    q_block: int = 64
    k_block: int = 64

    def __post_init__(self) -> None:
        for option in ("q_block", "k_block"):
            check_integer("diagonal", option, getattr(self, option), 1)

    def rule(self, blocks: Blocks) -> Value:
        """Keep the blocks on the diagonal."""
        return band(blocks, blocks.q_first, blocks.q_last)
