"""The rule that local patterns share: keys between two positions, never none."""

from sparsify.pattern import Blocks, Value


def band(blocks: Blocks, low: Value, high: Value) -> Value:
    """Keep the blocks that hold a key between `low` and `high`, the nearest block where none does.

    Queries beyond the last key keep the last block, queries before the first key the first one.
    """
    reaches_low = (blocks.k_last >= low) | (blocks.k_last >= blocks.k_length - 1)
    reaches_high = (blocks.k_first <= high) | (blocks.k_first <= 0)
    return reaches_low & reaches_high
