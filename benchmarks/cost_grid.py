"""The points that predictions are judged by, and what came out at each of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from sparsify.plugins import Device
from sparsify.workload import Workload, at_density, choosing
from sparsify_hw.probe import Selecting, fastest

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
"""Tokens; the calibration times other lengths."""

DIMS = (32, 64, 128)

DENSITIES = {64: (0.1, 0.3, 0.6), 16: (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)}
"""Shares of the keys by the size of the block."""

RESIDUAL_DENSITIES = (0.05, 0.2, 0.5)

FEW = (1, 4)
"""Queries of a step that writes a text word by word."""

Probe = Workload | Selecting


@dataclass(frozen=True)
class Point:
    """One attention that is timed, or one choice of blocks; `kind` is the group it counts in.

    `dense` is what a selection stands in for, `choice` how its blocks are chosen, where they are.
    """

    kind: str
    probe: Probe
    dense: Workload | None = None
    choice: Selecting | None = None


@dataclass(frozen=True)
class Judged:
    """Measured and predicted seconds of one point."""

    point: Point
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative difference of the prediction from the time."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Answer:
    """Whether to select blocks or to compute every score: what was told, and the times of both."""

    point: Point
    told: bool
    sparse: float
    dense: float

    @property
    def right(self) -> bool:
        """Whether the faster of both was told."""
        return self.told == (self.sparse < self.dense)

    @property
    def loss(self) -> float:
        """By what share the told one took longer than the other; 0 where it was right."""
        told, other = (self.sparse, self.dense) if self.told else (self.dense, self.sparse)
        return max(0.0, told / other - 1)


def points() -> Iterator[Point]:
    """All points; those of one length and head_dim follow each other."""
    for length, dim in product(LENGTHS, DIMS):
        yield from _self_attentions(length, dim)
    for rows, length, dim in product(FEW, LENGTHS[2:], DIMS[1:]):
        yield from _few(rows, length, dim)


def _few(rows: int, length: int, dim: int) -> Iterator[Point]:
    step = Workload(1, 8, 8, rows, length, dim, dim, k_block=16, residual_block=16)
    yield Point("few queries", step)
    yield Point("few queries", replace(step, heads=32))
    yield Point("few queries, bias", replace(step, bias_heads=8))
    stored = at_density(step, 0.1)
    yield Point("few queries, selected", stored, step)
    yield Point("few queries, residual", replace(stored, residual="mean"), step)


def _self_attentions(length: int, dim: int) -> Iterator[Point]:
    heads = max(2, min(8, 4096 // length))
    chosen = Selecting(length, dim, heads, 16)
    dense = Workload(1, heads, heads, length, length, dim, dim)
    yield Point("dense", dense)
    yield Point("dense, bias", replace(dense, bias_heads=1))
    yield Point("dense, float16", replace(dense, dtype="float16"))
    yield Point("dense, mask", replace(dense, mask_heads=1))
    yield Point("dense, batch of 2, groups", replace(dense, batch=2, kv_heads=heads // 2))
    for k_block, densities in DENSITIES.items():
        choice = Selecting(length, dim, heads, k_block)
        yield Point("choosing blocks", choice)
        for density in densities:
            work = at_density(replace(dense, k_block=k_block), density)
            yield Point(f"selected, k_block {k_block}", work, dense, choice)
    for residual, density in product(("mean", "iso"), RESIDUAL_DENSITIES):
        work = at_density(replace(dense, k_block=16, residual_block=16), density)
        yield Point(f"residual {residual}", replace(work, residual=residual), dense, chosen)
    biased = replace(dense, bias_heads=heads)
    yield Point("dense, bias", biased)
    for residual in ("none", "mean"):
        work = at_density(replace(biased, k_block=16, residual_block=16), 0.2)
        yield Point("selected, bias", replace(work, residual=residual), biased, chosen)
    masked = replace(dense, mask_heads=1, k_block=16, residual_block=16, residual="mean")
    yield Point("selected, mask", at_density(masked, 0.2))
    rows = replace(dense, k_block=1, residual_block=64, residual="mean")
    yield Point("selected, k_block 1", at_density(rows, 0.2))


def judge(grid: Sequence[Point], device: Device, threads: int) -> list[Judged]:
    """Predict all points, then time them."""
    predicted = [_predicted(device, point.probe) for point in grid]
    measured = fastest([point.probe for point in grid], threads)
    return [Judged(*each) for each in zip(grid, measured, predicted, strict=True)]


def _predicted(device: Device, probe: Probe) -> float:
    """Seconds of an attention; of a choice, what it adds to the attention that it chooses for."""
    if isinstance(probe, Workload):
        return device.cost(probe).seconds
    sizes = (1, probe.heads, probe.heads, probe.length, probe.length, probe.head_dim)
    work = Workload(*sizes, probe.head_dim, q_block=probe.q_block, k_block=probe.k_block)
    with_choice = replace(work, selector=choosing(work))
    return device.cost(with_choice).seconds - device.cost(work).seconds


def answers(found: Sequence[Judged]) -> Iterator[Answer]:
    """What was told at every point that has a dense one to stand in for."""
    by_probe = {each.point.probe: each for each in found}
    for each in found:
        if each.point.dense is None:
            continue
        predicted, measured, dense = each.predicted, each.measured, by_probe[each.point.dense]
        if each.point.choice is not None:
            choice = by_probe[each.point.choice]
            predicted, measured = predicted + choice.predicted, measured + choice.measured
        yield Answer(each.point, predicted < dense.predicted, measured, dense.measured)
