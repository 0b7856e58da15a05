"""Fits the rates of a core to measured times: which workloads are timed, and the least squares."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt

from sparsify.workload import SelectorWork, Workload, at_density
from sparsify_hw.cpu import RATES, Rates, amounts

LENGTHS = (96, 384, 768, 1536)
"""Lengths that are timed; none of those that a benchmark judges by."""

_SWEEPS = 5000

Floats = npt.NDArray[np.float64]


def attentions() -> list[Workload]:
    """The attentions to time on one core."""
    found = []
    for length, dim in product(LENGTHS, (32, 64, 128)):
        heads = max(1, 2048 // length)
        found.append(Workload(1, heads, heads, length, length, dim, dim))
    base = Workload(1, 4, 4, 1536, 1536, 64, 64)
    near = Workload(1, 8, 8, 384, 384, 64, 64)
    for k_block, density in product((64, 16), (0.05, 0.3)):
        found += [at_density(replace(work, k_block=k_block), density) for work in (base, near)]
    found += [at_density(replace(base, k_block=1, residual_block=64), 0.1)]
    for residual, density in product(("mean", "iso"), (0.1, 0.4)):
        work = at_density(replace(base, k_block=16, residual_block=16), density)
        found.append(replace(work, residual=residual))
    found.append(replace(base, bias=True))
    found.append(replace(base, dtype="float16"))
    found.append(at_density(Workload(1, 1, 1, 6144, 6144, 64, 64), 0.1))
    found.append(at_density(Workload(1, 1, 1, 6144, 6144, 128, 128), 0.05))
    for rows, length, dim in product((1, 6), (768, 3072, 12288), (64, 128)):
        found.append(Workload(1, 8, 8, rows, length, dim, dim))
    return found


def row(work: Workload) -> Floats:
    """Units of each rate, in the order of `RATES`."""
    units = dict.fromkeys(RATES, 0.0)
    for _, rate, amount in amounts(work):
        units[rate] += amount
    return np.array(list(units.values()))


def rates_of(works: Sequence[Workload], seconds: Sequence[float]) -> Rates:
    """The rates, none negative, whose predictions have the least squared relative error."""
    matrix = np.stack([row(work) for work in works]) / np.array(seconds)[:, None]
    found = non_negative(matrix, np.ones(len(works)))
    return dict(zip(RATES, found.tolist(), strict=True))


def non_negative(matrix: Floats, target: Floats) -> Floats:
    """Non-negative least squares by coordinate descent.

    Columns are scaled first; one without any unit gets 0.
    """
    norms = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(norms > 0, norms, 1.0)
    gram, right = scaled.T @ scaled, scaled.T @ target
    found = np.zeros(len(norms))
    for _ in range(_SWEEPS):
        for i in np.flatnonzero(norms):
            found[i] = max(0.0, found[i] + right[i] - gram[i] @ found)
    return np.asarray(found / np.where(norms > 0, norms, 1.0))


def select_rates(timed: Sequence[tuple[SelectorWork, float]]) -> Rates:
    """The rates of choosing blocks, from how long some choices took."""
    seconds = np.array([each for _, each in timed])
    units = [[work.macs, work.scores, work.choices, work.calls] for work, _ in timed]
    matrix = np.array(units, dtype=float) / seconds[:, None]
    names = ("select_mac", "select_score", "select_choice", "select_call")
    found = non_negative(matrix, np.ones(len(timed)))
    return dict(zip(names, found.tolist(), strict=True))
