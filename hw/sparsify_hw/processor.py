"""CPUs that are not at hand: what the kernel does in cycles, as measured on one, on all cores.

Work in vectors goes by how many float32 operations a core does in a cycle, the rest by the clock
alone. Cores share the memory; where it takes longer than computing, it counts. A CPU with matrix
units multiplies bfloat16 on them, as if the kernel used them.
"""

import math

from sparsify.workload import ITEM_BYTES, Cost, MatrixWork, Workload, cost_of
from sparsify_hw.cpu import READING, Cores, Rates, attention, is_few
from sparsify_hw.numbered import Numbered
from sparsify_hw.numbers import CYCLES, Values, numbers_of, values

MEASURED_PER_CYCLE = 32.0
"""FLOP/cycle in float32 of the core on which the kernel's cycles were measured."""

SCALAR = frozenset({"block", "panel", "call", "group", "group_panel", "few_row", "select_call"})
"""Rates of work that wider vectors do not speed up."""


def on_all_cores(n: Values, w: Workload) -> Cost:
    """What one call takes on all cores of a CPU of these numbers."""
    cores = Cores(
        rates=_rates(n, w.dtype),
        count=int(n["cores"]),
        fork=n["launch_seconds"],
        choice_fork=n["launch_seconds"],
        contention=1.0,
        matrix_mac=0.0,
        watts=0.0,
        run=1,
    )
    parts = dict(attention(cores, w).parts)
    chosen, memory = parts.pop("selector"), n["memory_bandwidth"]
    parts["memory"] = max(0.0, _read(w) / memory - math.fsum(parts.values()))
    parts["selector"] = max(chosen, w.selector.elements * ITEM_BYTES[w.dtype] / memory)
    return cost_of(parts, math.fsum(parts.values()) * n["watts"])


def products(n: Values, work: MatrixWork) -> Cost:
    """What matrix products take: arithmetic or memory, the slower counts."""
    compute = 2 * work.macs / (_flops(n, work.dtype) * n["cores"])
    memory = max(0.0, work.io_bytes / n["memory_bandwidth"] - compute)
    parts = {"qk": compute, "memory": memory, "overhead": n["launch_seconds"] * work.calls}
    return cost_of(parts, math.fsum(parts.values()) * n["watts"])


def _rates(n: Values, dtype: str) -> Rates:
    """Seconds of one core for one unit of each kind of work."""
    kernel, clock = values(numbers_of("cpu-kernel")), n["clock_hertz"]
    wider = n["float32_per_cycle"] / MEASURED_PER_CYCLE
    rates = {
        rate: kernel[name] / clock / (1.0 if rate in SCALAR else wider)
        for rate, name in CYCLES.items()
    }
    return {**rates, **dict.fromkeys(READING, 0.0), "mac": 2 / _flops(n, dtype)}


def _flops(n: Values, dtype: str) -> float:
    """FLOP/s of one core in matrices; a type without a rate of its own is multiplied in float32."""
    kind = dtype if f"{dtype}_per_cycle" in n else "float32"
    efficiency = n.get(f"{kind}_efficiency", n["efficiency"])
    return n[f"{kind}_per_cycle"] * n["clock_hertz"] * efficiency


def _read(w: Workload) -> float:
    """Bytes from memory: everything once; few queries read only the keys that they keep."""
    if not is_few(w):
        return w.io_bytes
    left = w.batch * w.kv_heads * w.k_length * (1 - w.density)
    return w.io_bytes - left * (w.head_dim + w.value_dim) * ITEM_BYTES[w.dtype]


ZEN4, ZEN5, SAPPHIRE_RAPIDS, SAPPHIRE_RAPIDS_AMX, NEOVERSE_V2 = (
    Numbered(name, numbers_of(name), on_all_cores, products)
    for name in ("zen4", "zen5", "sapphire-rapids", "sapphire-rapids-amx", "neoverse-v2")
)
