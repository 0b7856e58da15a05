"""Attention on an array that skips what a mask leaves out, as three papers propose such arrays.

Only the papers' abstracts were at hand: what an abstract does not say is reconstructed here, and
`sparsify claims` says so. Independent units take one query block after another. A unit multiplies
fragments of queries and keys; a fragment that is left out costs no cycle but that of reading its
metadata. The softmax runs beside the array and is not counted. A detector beside the main array
predicts scores in few bits while the array works.
"""

import math

from sparsify.workload import ITEM_BYTES, Cost, MatrixWork, Workload, cost_of
from sparsify_hw.numbers import Values
from sparsify_hw.schedule import makespan


def attention(n: Values, w: Workload) -> Cost:
    """What one call takes on an array of these numbers."""
    units, clock = n["multiprocessors"], n["clock_hertz"]
    rows = [(_row_cycles(n, w, keys) / clock, blocks) for keys, blocks in w.histogram]
    total = sum(seconds * blocks for seconds, blocks in rows)
    reading = _metadata_cycles(n, w) * w.blocks / units / clock
    main = total / units - reading
    ended = makespan(rows, int(units))
    dims = w.head_dim + w.value_dim
    parts = {
        "qk": main * w.head_dim / dims,
        "pv": main * w.value_dim / dims,
        "overhead": reading,
        "residual": _residual_macs(w) / (n["macs_per_cycle"] * clock),
        "imbalance": ended - total / units,
        "selector": _selecting(n, w, ended),
    }
    parts["memory"] = max(0.0, w.io_bytes / n["memory_bandwidth"] - math.fsum(parts.values()))
    return cost_of(parts, _joules(n, w, math.fsum(parts.values())))


def matrices(n: Values, work: MatrixWork) -> Cost:
    """What matrix products take: arithmetic or memory, the slower counts."""
    compute = work.macs / (n["macs_per_cycle"] * n["clock_hertz"])
    memory = max(0.0, work.io_bytes / n["memory_bandwidth"] - compute)
    operands = _operand_bytes(n, work.macs, ITEM_BYTES[work.dtype])
    joules = (
        work.macs * n["joules_per_mac"]
        + operands * n["joules_per_operand_byte"]
        + work.io_bytes * n["joules_per_byte"]
        + (compute + memory) * n["idle_watts"]
    )
    return cost_of({"qk": compute, "memory": memory}, joules)


def _fragments(n: Values, length: int) -> int:
    return math.ceil(length / n["fragment"])


def _row_cycles(n: Values, w: Workload, keys: int) -> float:
    """Cycles of one unit for one query block that keeps so many keys."""
    fragment = n["fragment"]
    rows = _fragments(n, min(w.q_block, w.q_length)) * fragment
    macs = rows * _fragments(n, keys) * fragment * (w.head_dim + w.value_dim)
    each = n["macs_per_cycle"] / n["multiprocessors"]
    share = n.get("region_overhead", 0.0) if w.density < 1 else 0.0
    return macs / each * (1 + share) + _metadata_cycles(n, w)


def _metadata_cycles(n: Values, w: Workload) -> float:
    """Cycles of one query block for the metadata of all its fragments; none where all are kept."""
    if w.density == 1:
        return 0.0
    rows = _fragments(n, min(w.q_block, w.q_length))
    return rows * _fragments(n, w.k_length) * n["fragment_overhead_cycles"]


def _selecting(n: Values, w: Workload, busy: float) -> float:
    """Seconds that choosing adds; a detector works while the main array does."""
    if "detector_macs" not in n:
        return w.selector.macs / (n["macs_per_cycle"] * n["clock_hertz"])
    return max(0.0, w.selector.macs / (n["detector_macs"] * n["clock_hertz"]) - busy)


def _residual_macs(w: Workload) -> float:
    """Left-out groups count as keys."""
    return w.groups * w.q_block * (w.head_dim + w.value_dim)


def _operand_bytes(n: Values, macs: float, item: int) -> float:
    """Bytes that the array fetches: each operand serves one side of a fragment."""
    return 2 * macs / n["fragment"] * item


def _joules(n: Values, w: Workload, seconds: float) -> float:
    """Multiply-adds, operands, memory and idling; a multiplier grows as the square of its bits."""
    item = ITEM_BYTES[w.dtype]
    narrow = (w.selector.bits / (8 * item)) ** 2
    macs = w.macs + _residual_macs(w)
    array = macs * n["joules_per_mac"]
    array += _operand_bytes(n, macs, item) * n["joules_per_operand_byte"]
    regions = n.get("region_energy", 0.0) if w.density < 1 else 0.0
    return (
        array * (1 + regions)
        + w.selector.macs * n["joules_per_mac"] * narrow
        + w.io_bytes * n["joules_per_byte"]
        + seconds * n["idle_watts"]
    )
