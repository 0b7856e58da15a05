"""Attention on a GPU: tiles of queries on multiprocessors, matrix units beside exponentials.

One thread block takes a tile of queries and walks the keys that it keeps. Its multiply-adds run on
the matrix units, its exponentials on the special-function units at the same time; the slower of
the two counts. Tiles fill the multiprocessors in waves. Where queries are few, the keys are split
instead. Memory counts where it takes longer than computing (the roofline of Williams et al. 2009).
"""

import math
from collections.abc import Iterator

from sparsify.workload import ITEM_BYTES, Cost, MatrixWork, Workload, cost_of
from sparsify_hw.numbered import Numbered
from sparsify_hw.numbers import Values, numbers_of
from sparsify_hw.schedule import makespan

MATRIX_ROWS = 16
"""Rows that one instruction of the matrix units takes; fewer queries are padded to so many."""

SPLIT_KEYS = 256
"""Fewest keys of one piece, where few queries are split over the multiprocessors by keys."""

BIT_RATES = {32: 1.0, 16: 1.0, 8: 2.0, 4: 4.0}
"""Rate of a selector's multiply-adds of so many bits, in units of the attention's own type."""


def attention(n: Values, w: Workload) -> Cost:
    """What one call takes on a GPU of these numbers."""
    compute, exponentials = _tile_seconds(n, w)
    units = n["multiprocessors"]
    balanced = (compute + exponentials) / units
    ended = _ended(n, w, compute + exponentials)
    parts = {
        "qk": compute / units * w.head_dim / (w.head_dim + w.value_dim),
        "pv": compute / units * w.value_dim / (w.head_dim + w.value_dim),
        "softmax": exponentials / units,
        "imbalance": ended - balanced,
        "residual": _residual(n, w),
        "selector": _selector(n, w),
        "overhead": n["launch_seconds"] * (1 + w.selector.calls + (w.residual != "none")),
    }
    parts["memory"] = max(0.0, _moving(n, w) - ended - parts["residual"])
    flops = 2 * (w.macs + w.selector.macs) + 2 * w.groups * w.q_block * (w.head_dim + w.value_dim)
    return cost_of(parts, _joules(n, math.fsum(parts.values()), flops, w.io_bytes, w.dtype))


def matrices(n: Values, work: MatrixWork) -> Cost:
    """What matrix products take: arithmetic or memory, the slower counts."""
    compute = 2 * work.macs / _rate(n, work.dtype)
    memory = max(0.0, work.io_bytes / n["memory_bandwidth"] - compute)
    joules = _joules(
        n,
        compute + memory + n["launch_seconds"] * work.calls,
        2 * work.macs,
        work.io_bytes,
        work.dtype,
    )
    launches = n["launch_seconds"] * work.calls
    return cost_of({"qk": compute, "memory": memory, "overhead": launches}, joules)


def _rate(n: Values, dtype: str) -> float:
    """FLOP/s that a good kernel reaches, all multiprocessors together."""
    return n[f"{dtype}_flops"] * n["efficiency"]


def _exponentials(n: Values) -> float:
    """Exponentials a second, all multiprocessors together."""
    return n["exponentials_per_cycle"] * n["clock_hertz"] * n["multiprocessors"]


def _rows(w: Workload) -> float:
    """Rows of a query block as the matrix units take them, padded to whole instructions."""
    rows = w.q_length / -(-w.q_length // w.q_block)
    return math.ceil(rows / MATRIX_ROWS) * MATRIX_ROWS


def _tile_seconds(n: Values, w: Workload) -> tuple[float, float]:
    """Seconds of one multiprocessor for all tiles: multiply-adds, and exponentials beyond them."""
    scores = w.kept_keys * _rows(w)
    units = n["multiprocessors"]
    compute = 2 * scores * (w.head_dim + w.value_dim) / _rate(n, w.dtype) * units
    exponentials = scores / _exponentials(n) * units
    return compute, max(0.0, exponentials - compute)


def _ended(n: Values, w: Workload, total: float) -> float:
    """When the last multiprocessor is done with what takes one of them `total` seconds.

    Few queries are split by keys, in pieces of `SPLIT_KEYS` or more, so that all are busy.
    """
    if w.q_length > MATRIX_ROWS:
        return makespan(_tiles(n, w, total), int(n["multiprocessors"]))
    pieces = sum(max(1.0, keys / SPLIT_KEYS) * blocks for keys, blocks in w.histogram)
    return total / min(n["multiprocessors"], pieces)


def _tiles(n: Values, w: Workload, total: float) -> Iterator[tuple[float, int]]:
    """The call's `total` seconds cut into tiles: query blocks of one kind that fit `query_tile`."""
    kept = max(w.kept_keys, 1)
    together = max(1, int(n["query_tile"]) // w.q_block)
    for keys, blocks in w.histogram:
        tiles = -(-blocks // together)
        yield total * keys * blocks / kept / tiles, tiles


def _moving(n: Values, w: Workload) -> float:
    """Seconds that memory and the second-level cache take, whichever is slower."""
    row = (w.head_dim + w.value_dim) * ITEM_BYTES[w.dtype]
    together = max(1.0, n["query_tile"] / w.q_block)
    shared = w.heads // w.kv_heads if w.q_length <= MATRIX_ROWS else 1
    near = w.kept_keys * row / min(together, w.blocks) / shared
    once = w.batch * w.kv_heads * w.k_length * row
    read = max(once * _touched(w), near * _missed(n, w, row))
    far = (w.io_bytes - once + read) / n["memory_bandwidth"]
    return max(far, near / n["l2_bandwidth"])


def _missed(n: Values, w: Workload, row: int) -> float:
    """The share of reads beyond the second-level cache, by the heads that are worked on at once."""
    tiles = max(1.0, w.q_length * (w.heads // w.kv_heads) / n["query_tile"])
    heads = min(w.batch * w.kv_heads, max(1.0, n["multiprocessors"] / tiles))
    return max(0.0, 1 - n["l2_bytes"] / (heads * w.k_length * row))


def _touched(w: Workload) -> float:
    """The share of the keys that some query block reads, where each picks its own at random."""
    blocks = w.blocks / (w.batch * w.kv_heads)
    return 1 - (1 - w.density) ** blocks if w.density < 1 else 1.0


def _residual(n: Values, w: Workload) -> float:
    """Groups count as keys; their means are made from every key and value once."""
    if w.residual == "none":
        return 0.0
    dims = w.head_dim + w.value_dim
    attended = 2 * w.groups * _rows(w) * dims / _rate(n, w.dtype)
    means = w.batch * w.kv_heads * w.k_length * dims * ITEM_BYTES[w.dtype]
    return attended + means / n["memory_bandwidth"]


def _selector(n: Values, w: Workload) -> float:
    s = w.selector
    macs = 2 * s.macs / (_rate(n, w.dtype) * BIT_RATES[s.bits])
    computing = macs + s.scores / _exponentials(n) + s.choices / n["float32_flops"]
    return max(computing, s.elements * ITEM_BYTES[w.dtype] / n["memory_bandwidth"])


def _joules(n: Values, seconds: float, flops: float, moved: float, dtype: str) -> float:
    """Idle power all the time, and each FLOP and byte its own; never above full load."""
    each = (n["watts"] - n["idle_watts"]) / n[f"{dtype}_flops"]
    used = n["idle_watts"] * seconds + flops * each + moved * n["joules_per_byte"]
    return min(n["watts"] * seconds, used)


A100, H100, H200, L4, RTX4090, ORIN = (
    Numbered(name, numbers_of(name), attention, matrices)
    for name in ("a100", "h100", "h200", "l4", "rtx4090", "orin")
)
