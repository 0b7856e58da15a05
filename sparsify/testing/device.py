"""Checks that a device keeps the contract of `sparsify.plugins.Device`."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

from sparsify.plugins import Device
from sparsify.workload import ITEM_BYTES, PARTS, Cost, SelectorWork, Workload, at_density

BOUNDS = ("compute", "memory", "overhead")

_DENSITIES = (0.05, 0.2, 0.5, 1.0)
_LENGTHS = ((1, 4096), (128, 128), (1024, 1024), (4096, 16384))
_CHOOSING = SelectorWork(10**9, 10**7, 10**5, 2)


def check_device(device: Device) -> None:
    """Ask for the cost of many workloads, and compare the answers with one another.

    Raises:
        AssertionError: the device breaks the contract; the sentence says where.
    """
    _require(bool(device.name), device, "has no name")
    for work in _workloads():
        sparse = [at_density(work, density) for density in _DENSITIES]
        costs = [_asked(device, each) for each in sparse]
        for (before, after), each in zip(pairwise(costs), sparse, strict=False):
            more = before.seconds <= after.seconds * (1 + 1e-9)
            _require(more, device, f"takes less time for more keys than {each}")
        kept = _asked(device, replace(sparse[0], residual="mean"))
        paid = kept.seconds >= costs[0].seconds * (1 - 1e-9) and kept.joules >= costs[0].joules
        _require(paid, device, f"takes less for left-out keys that contribute: {sparse[0]}")
        chosen = _asked(device, replace(sparse[0], selector=_CHOOSING))
        free = chosen.seconds >= costs[0].seconds * (1 - 1e-9)
        _require(free, device, f"takes less time where blocks are chosen: {sparse[0]}")


def _workloads() -> Iterator[Workload]:
    for (queries, keys), dim, dtype in product(_LENGTHS, (32, 128), ITEM_BYTES):
        yield Workload(2, 8, 2, queries, keys, dim, dim, dtype)


def _asked(device: Device, work: Workload) -> Cost:
    cost = device.cost(work)
    _require(device.cost(work) == cost, device, f"answers twice differently: {work}")
    usable = math.isfinite(cost.seconds) and cost.seconds > 0
    _require(usable, device, f"answers {cost.seconds} seconds: {work}")
    known = math.isfinite(cost.joules) and cost.joules >= 0
    _require(known, device, f"answers {cost.joules} joules: {work}")
    _require(cost.bound in BOUNDS, device, f"is bound by {cost.bound!r}, none of {BOUNDS}")
    _check_parts(device, work, cost)
    return cost


def _check_parts(device: Device, work: Workload, cost: Cost) -> None:
    if not cost.parts:
        return
    odd = set(cost.parts) - set(PARTS)
    _require(not odd, device, f"has parts {sorted(odd)}, none of {PARTS}")
    _require(min(cost.parts.values()) > -1e-12, device, f"has a part below 0: {work}")
    together = math.isclose(math.fsum(cost.parts.values()), cost.seconds, rel_tol=1e-6)
    _require(together, device, f"has parts that are not the whole: {work}")


def _require(condition: bool, device: Device, sentence: str) -> None:
    if not condition:
        raise AssertionError(f"device {device.name} {sentence}")
