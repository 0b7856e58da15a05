"""A sliding window around every query, optionally with global tokens.

Source: Longformer (Beltagy et al. 2020, arXiv 2004.05150); StreamingLLM's first tokens (Xiao et al.
2023, arXiv 2309.17453) are `global_tokens`.

Options, in tokens: `size` on each side of a query; `global_tokens` at the start of the sequence,
which every query keeps and whose own query blocks see every key; `q_block` and `k_block`.
"""

from dataclasses import dataclass

from sparsify.pattern import Blocks, Value
from sparsify_plugins.patterns._band import band
from sparsify_plugins.patterns._options import check_integer


@dataclass(frozen=True)
class Window:
    """Keep the blocks with a key within `size` tokens of one of the block's queries."""

    size: int = 256
    global_tokens: int = 0
    q_block: int = 64
    k_block: int = 64

    def __post_init__(self) -> None:
        for option, least in (("size", 0), ("global_tokens", 0), ("q_block", 1), ("k_block", 1)):
            check_integer("window", option, getattr(self, option), least)

    def rule(self, blocks: Blocks) -> Value:
        """Keep the window's blocks, and the rows and columns of the global tokens."""
        near = band(blocks, blocks.q_first - self.size, blocks.q_last + self.size)
        if not self.global_tokens:
            return near
        reach = self.global_tokens
        return near | (blocks.k_first < reach) | (blocks.q_first < reach)
