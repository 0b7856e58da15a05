"""Selections of equal density whose rows are equally long, or not: what waiting costs threads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparsify.plugins import Device
from sparsify.workload import Workload
from sparsify_hw.probe import fastest

K_BLOCK = 64

SIZES = ((1, 128, 8192), (1, 256, 8192), (1, 1024, 1024), (4, 2048, 2048), (1, 4096, 4096))
"""Heads, queries and keys."""


@dataclass(frozen=True)
class Rows:
    """Seconds of balanced and unbalanced rows of one size, measured and predicted."""

    work: Workload
    measured: Mapping[str, float]
    predicted: Mapping[str, float]


def kept(blocks: int, k_length: int) -> dict[str, tuple[tuple[int, int], ...]]:
    """Histograms of so many query blocks, all of the same mean.

    "balanced" gives every row 5/8 of the keys, "halves" one half of them a quarter and the other
    all, "one long" all rows but one the same, and that one all keys.
    """
    eighth = k_length // 8
    half = blocks // 2
    short = round((5 * blocks - 8) / (blocks - 1) * eighth / K_BLOCK) * K_BLOCK
    return {
        "balanced": ((5 * eighth, blocks),),
        "halves": ((2 * eighth, half), (8 * eighth, half)),
        "one long": ((short, blocks - 1), (8 * eighth, 1)),
    }


def judge(device: Device, threads: int) -> Iterator[Rows]:
    """Time every size with every kind of rows."""
    for heads, queries, keys in SIZES:
        base = Workload(1, heads, heads, queries, keys, 64, 64, k_block=K_BLOCK)
        works = {
            name: replace(base, kept=histogram)
            for name, histogram in kept(base.blocks, keys).items()
        }
        times = fastest(list(works.values()), threads)
        predicted = {name: device.cost(work).seconds for name, work in works.items()}
        yield Rows(base, dict(zip(works, times, strict=True)), predicted)
