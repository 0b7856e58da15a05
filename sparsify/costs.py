"""What a model costs on devices, by length and by the share of scores that is computed."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparsify.errors import SparsifyError
from sparsify.model import Model
from sparsify.model_work import rest_of
from sparsify.plugins import Device
from sparsify.predicted import GAIN
from sparsify.site import Site
from sparsify.site_work import exact_work
from sparsify.workload import Workload, at_density, choosing

K_BLOCK = 16
"""Keys of a block where nothing else is asked: that of `mean_key`."""

_STEPS = 20
"""Halvings on the way to the density at which a selection begins to pay."""

Works = Counter[Workload]
"""Calls of attentions: how many there are of each kind."""


@dataclass(frozen=True)
class Spent:
    """Seconds, and joules (an estimate), of all attentions of a model in one run."""

    seconds: float
    joules: float


@dataclass(frozen=True)
class CostRow:
    """One model on one device at one length, in tokens.

    `dense` computes every score that is permitted; `sparse` belongs to `densities`, with the time
    to choose. `rest` is what the model does beside, None where a device does not tell. Below the
    density `pays_below` a selection takes less time than `dense`; 0 where none does.
    """

    device: str
    length: int
    batch: int
    dtype: str
    densities: tuple[float, ...]
    dense: Spent
    sparse: tuple[Spent, ...]
    rest: Spent | None
    pays_below: float

    @property
    def share(self) -> float | None:
        """The attentions' share of the model's seconds, with every score computed."""
        return None if self.rest is None else _share(self.dense.seconds, self.rest.seconds)

    @property
    def energy_share(self) -> float | None:
        """The attentions' share of the model's joules, with every score computed."""
        return None if self.rest is None else _share(self.dense.joules, self.rest.joules)


def costs(
    model: Model,
    sites: Sequence[Site],
    devices: Sequence[Device],
    lengths: Sequence[int],
    densities: Sequence[float],
    dtype: str | None = None,
) -> list[CostRow]:
    """Ask every device for every length, in that order.

    Lengths take the place of those that the graph fixes, `dtype` that of its own type.

    Raises:
        SparsifyError: no attention was found, or a length or density makes no sense.
    """
    if not sites:
        raise SparsifyError(f"{model.path}: no attention was found; see `sparsify inspect`")
    return [
        _row(model, sites, device, length, tuple(densities), dtype)
        for device in devices
        for length in lengths
    ]


def costs_json(rows: Sequence[CostRow]) -> list[dict[str, Any]]:
    """The rows as plain data."""
    return [{**asdict(row), "share": row.share, "energy_share": row.energy_share} for row in rows]


def _row(
    model: Model,
    sites: Sequence[Site],
    device: Device,
    length: int,
    densities: tuple[float, ...],
    dtype: str | None,
) -> CostRow:
    works = Counter(_work(site, length, dtype) for site in sites)
    dense = _spent(device, works)
    sparse = tuple(_spent(device, _selected(works, density)) for density in densities)
    pays = _pays_below(device, works, dense.seconds)
    first = next(iter(works))
    rest = _rest(model, device, first)
    return CostRow(
        device.name, length, first.batch, first.dtype, densities, dense, sparse, rest, pays
    )


def _work(site: Site, length: int, dtype: str | None) -> Workload:
    work = exact_work(replace(site, q_length=length, k_length=length))
    assert work is not None, "both lengths are given"
    return work if dtype is None else replace(work, dtype=dtype)


def _selected(works: Works, density: float) -> Works:
    """The same calls with a share of their keys, chosen in the call."""
    chosen: Works = Counter()
    for dense, calls in works.items():
        work = at_density(replace(dense, k_block=K_BLOCK), density)
        chosen[replace(work, selector=choosing(work))] += calls
    return chosen


def _spent(device: Device, works: Works) -> Spent:
    found = [(device.cost(work), calls) for work, calls in works.items()]
    seconds = math.fsum(cost.seconds * calls for cost, calls in found)
    return Spent(seconds, math.fsum(cost.joules * calls for cost, calls in found))


def _rest(model: Model, device: Device, work: Workload) -> Spent | None:
    ask: Any = getattr(device, "dense", None)
    if ask is None:
        return None
    cost = ask(rest_of(model, work.batch * work.q_length, work.dtype))
    return Spent(cost.seconds, cost.joules)


def _pays_below(device: Device, works: Works, dense: float) -> float:
    """Halve the interval in which selecting begins to take as long as computing every score."""

    def pays(density: float) -> bool:
        return _spent(device, _selected(works, density)).seconds < dense * (1 - GAIN)

    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low if low > 2.0**-_STEPS else 0.0


def _share(part: float, other: float) -> float:
    return part / (part + other)
