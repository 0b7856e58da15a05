"""Static dense regions along the diagonal, optionally with neighbours and global columns.

Source: a reconstruction, from its abstract, of "Statically structured sparse attention" (Dai, Genc,
Venkatesan, Khailany, DAC 2023, doi 10.1109/DAC56929.2023.10247993), which splits the attention
matrix into dense regions; the shapes of its masks were not available to us.

Options, in tokens except `neighbours`: `region` is the side of one dense square; `neighbours` adds
that many regions on each side; `global_columns` leading keys are kept by every query; `q_block` and
`k_block`. Regions that are no multiple of the blocks keep every block they touch.
"""

from dataclasses import dataclass

from sparsify.pattern import Blocks, Value
from sparsify_plugins.patterns._band import band
from sparsify_plugins.patterns._options import check_integer

_LEAST = {"region": 1, "neighbours": 0, "global_columns": 0, "q_block": 1, "k_block": 1}


@dataclass(frozen=True)
class DenseRegions:
    """Keep the blocks whose keys lie in the regions of the block's queries."""

    region: int = 256
    neighbours: int = 0
    global_columns: int = 0
    q_block: int = 64
    k_block: int = 64

    def __post_init__(self) -> None:
        for option, least in _LEAST.items():
            check_integer("dense_regions", option, getattr(self, option), least)

    def rule(self, blocks: Blocks) -> Value:
        """Keep the regions of the first to the last query, their neighbours, and the columns."""
        first = blocks.q_first // self.region - self.neighbours
        after = blocks.q_last // self.region + (self.neighbours + 1)
        dense = band(blocks, first * self.region, after * self.region - 1)
        if not self.global_columns:
            return dense
        return dense | (blocks.k_first < self.global_columns)
