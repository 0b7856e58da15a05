"""Fits the rates of a core to measured times: which workloads are timed, and the least squares."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt

from sparsify.workload import Workload, at_density
from sparsify_hw.cpu import RATES, Rates, amounts, choice_amounts
from sparsify_hw.probe import Selecting

LENGTHS = (96, 384, 768, 1536)
"""Lengths that are timed; none of those that a benchmark judges by."""

_SWEEPS = 5000

Floats = npt.NDArray[np.float64]


def probes() -> list[Workload | Selecting]:
    """What is timed on one core."""
    return [*_attentions(), *_choices()]


def _attentions() -> Iterator[Workload]:
    for length, dim in product(LENGTHS, (32, 64, 128)):
        heads = max(1, 2048 // length)
        yield Workload(1, heads, heads, length, length, dim, dim)
    base = Workload(1, 4, 4, 1536, 1536, 64, 64)
    near = Workload(1, 8, 8, 384, 384, 64, 64)
    for k_block, density in product((64, 16), (0.05, 0.3)):
        yield from (at_density(replace(work, k_block=k_block), density) for work in (base, near))
    yield at_density(replace(base, k_block=1, residual_block=64), 0.1)
    for length, dim, density in product((96, 384, 1536), (32, 128), (0.1, 0.4)):
        heads = max(1, 2048 // length)
        work = Workload(1, heads, heads, length, length, dim, dim, k_block=16, residual_block=16)
        yield replace(at_density(work, density), residual="mean" if density < 0.2 else "iso")
    yield replace(base, bias_heads=1)
    yield replace(base, mask_heads=1)
    for work in (base, near, Workload(1, 4, 4, 3072, 3072, 64, 64)):
        few = replace(at_density(replace(work, k_block=16), 0.1), bias_heads=work.heads)
        yield few
        yield replace(few, residual="mean", residual_block=16)
    yield replace(few, bias_heads=0, mask_heads=1, residual="mean", residual_block=16)
    yield replace(base, dtype="float16")
    yield at_density(Workload(1, 1, 1, 6144, 6144, 64, 64), 0.1)
    yield at_density(Workload(1, 1, 1, 6144, 6144, 128, 128), 0.05)
    for rows, length, dim in product((1, 6), (768, 3072, 12288), (64, 128)):
        yield Workload(1, 8, 8, rows, length, dim, dim)
    for rows in (1, 6):
        step = Workload(1, 8, 8, rows, 3072, 64, 64, k_block=16, residual_block=16)
        yield replace(step, bias_heads=8)
        yield replace(at_density(step, 0.1), residual="mean")


def _choices() -> Iterator[Selecting]:
    for length, dim, k_block in product((96, 384, 1536, 6144), (32, 128), (16, 64)):
        yield Selecting(length, dim, max(1, min(8, 4096 // length)), k_block)


def units(probe: Workload | Selecting) -> Floats:
    """Units of each rate that a probe takes, in the order of `RATES`."""
    found = dict.fromkeys(RATES, 0.0)
    parts = amounts(probe) if isinstance(probe, Workload) else choice_amounts(probe.work)
    for _, rate, amount in parts:
        found[rate] += amount
    return np.array(list(found.values()))


def rates_of(timed: Sequence[Workload | Selecting], seconds: Sequence[float]) -> Rates:
    """The rates, none negative, whose predictions have the least squared relative error."""
    matrix = np.stack([units(probe) for probe in timed]) / np.array(seconds)[:, None]
    found = non_negative(matrix, np.ones(len(timed)))
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
