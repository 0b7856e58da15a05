"""Strided attention: every block sees its own neighbourhood and every n-th block of keys.

Source: Sparse Transformer (Child et al. 2019, arXiv 1904.10509). Options: `stride` in key blocks,
`q_block` and `k_block` in tokens.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Strided:
    """Keep the blocks on the diagonal and every `stride`-th column of blocks."""

    stride: int = 4
    q_block: int = 64
    k_block: int = 64

    def rule(self, blocks):
        """Use + - * // and comparisons only: then the rule runs in Python and in the model."""
        column = blocks.k_first // self.k_block
        every_nth = column - column // self.stride * self.stride <= 0
        own = (blocks.k_first <= blocks.q_last) & (blocks.k_last >= blocks.q_first)
        return own | every_nth
