"""This machine as a device: a measured rate of attention, and a fixed cost per panel of queries.

The rates are timed once per process on small calls of the operator itself, so they include whatever
instruction set, thread count and library are in force. `cost` answers for one call of one site.
"""

import os
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from sparsify import plugins, runtime
from sparsify.feeds import Feeds
from sparsify.workload import Cost, Workload, cost_of
from sparsify_hw.numbers import numbers_of

_LENGTH, _HEADS, _DIM = 1024, 4, 64
_BLOCK = 64
_REPEATS = 5

SELECTOR_SECONDS = 30e-6
"""Fixed cost of an operator that chooses blocks, a call: measured on mean_key at 16 tokens."""


@dataclass(frozen=True)
class Rates:
    """What was measured: seconds per multiply-add of dense attention, and per panel of queries."""

    per_mac: float
    per_panel: float


@dataclass(frozen=True)
class Host:
    """The machine that sparsify runs on."""

    name: str = "host"

    def cost(self, workload: Workload) -> Cost:
        """Seconds and joules of one call; the energy is an estimate."""
        rates, w = measured(), workload
        each, selector = rates.per_mac, w.selector
        chosen = (selector.macs + selector.scores) * each + selector.calls * SELECTOR_SECONDS
        extra = w.groups * w.q_block * (w.head_dim + w.value_dim) * each
        parts = {
            "qk": w.scores * w.head_dim * each,
            "pv": w.scores * w.value_dim * each,
            "residual": extra,
            "selector": chosen,
            "overhead": w.blocks * rates.per_panel,
        }
        watts = numbers_of("host")["core_watts"].value * (os.cpu_count() or 1)
        return cost_of(parts, sum(parts.values()) * watts)


HOST = Host()


@lru_cache(maxsize=1)
def measured() -> Rates:
    """Time the operator dense and with single small blocks, and solve for the two rates."""
    dense = _seconds(selected=None)
    blocks = _LENGTH // _BLOCK
    few = _seconds(selected=1)
    macs = 2 * _DIM * _HEADS * _LENGTH**2
    per_mac = dense / macs
    spare = few - per_mac * macs / blocks
    return Rates(per_mac, max(spare, 0.0) / (_HEADS * blocks))


def _seconds(selected: int | None) -> float:
    active = runtime.session(_model(selected is not None), threads=None)
    feeds = _feeds(selected)
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        runtime.run(active, feeds)
        times.append(time.perf_counter() - start)
    return min(times)


def _model(selection: bool) -> bytes:
    operator: plugins.Operator = plugins.get("operators", "SparseAttention")
    uses = frozenset({"selection"} if selection else ())
    names = list(operator.inputs[: 5 if selection else 3])
    node = helper.make_node(operator.name, names, ["Y"], domain=operator.domain)
    attributes = {**operator.attributes, "scale": _DIM**-0.5}
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    kinds = [TensorProto.FLOAT] * 3 + [TensorProto.INT32] * 2
    inputs = [helper.make_tensor_value_info(n, k, None) for n, k in zip(names, kinds, strict=False)]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(operator.domain, operator.version)]
    model = helper.make_model(
        helper.make_graph([node], "rate", inputs, [output]),
        functions=[operator.function(17, TensorProto.FLOAT, uses)],
        opset_imports=opsets,
        ir_version=8,
    )
    return bytes(model.SerializeToString())


def _feeds(selected: int | None) -> Feeds:
    rng = np.random.default_rng(0)
    shape = (1, _HEADS, _LENGTH, _DIM)
    feeds: dict[str, Any] = {
        name: rng.standard_normal(shape).astype(np.float32) for name in ("Q", "K", "V")
    }
    if selected is None:
        return feeds
    rows = _LENGTH // _BLOCK
    ids = np.arange(rows, dtype=np.int32).reshape(1, 1, rows, 1)
    count = np.ones((1, 1, rows), dtype=np.int32)
    return {**feeds, "block_indices": ids, "block_count": count}
