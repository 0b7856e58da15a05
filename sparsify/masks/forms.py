"""Which keys a grid lets its queries see, as a band around the diagonal: pure arithmetic."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Grid = npt.NDArray[np.bool_]

_CHUNK = 1 << 22
"""Elements that are compared at once."""


@dataclass(frozen=True)
class Band:
    """Key j is kept for position p where `low <= j - p <= high`; None leaves a side open."""

    low: int | None = None
    high: int | None = None

    def meet(self, other: "Band") -> "Band":
        """The band that keeps what both keep."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return Band(max(lows, default=None), min(highs, default=None))

    @property
    def open(self) -> bool:
        """Whether every key is kept."""
        return self.low is None and self.high is None

    @property
    def expressible(self) -> bool:
        """Whether the operator's attributes can say it: the own position is kept."""
        return (self.low is None or self.low <= 0) and (self.high is None or self.high >= 0)


@dataclass(frozen=True)
class Extent:
    """The sizes of a grid; query i stands at position `i + offset`."""

    queries: int
    keys: int
    offset: int = 0

    def shows_low(self, low: int) -> bool:
        """Whether a grid of this size has keys below the band."""
        return -(self.queries - 1 + self.offset) < low

    def shows_high(self, high: int) -> bool:
        """Whether a grid of this size has keys above the band."""
        return self.keys - 1 - self.offset > high

    def empties(self, band: Band) -> bool:
        """Whether a row keeps no key."""
        rows = np.arange(self.queries) + self.offset
        first = np.zeros_like(rows) if band.low is None else np.maximum(rows + band.low, 0)
        last = np.full_like(rows, self.keys - 1)
        if band.high is not None:
            last = np.minimum(rows + band.high, last)
        return bool((first > last).any())


def band_of(kept: Grid, offset: int) -> Band | None:
    """The band that a grid `[queries, keys]` is, bit for bit; None where it is no band."""
    keys = kept.shape[1]
    some = kept.any(axis=1)
    if not some.any():
        return None
    positions = np.arange(kept.shape[0]) + offset
    first = kept.argmax(axis=1)
    last = keys - 1 - kept[:, ::-1].argmax(axis=1)
    starts, ends = some & (first > 0), some & (last < keys - 1)
    low = int((first - positions)[starts].max()) if starts.any() else None
    high = int((last - positions)[ends].min()) if ends.any() else None
    band = Band(low, high)
    return band if _is_band(kept, band, positions) else None


def _is_band(kept: Grid, band: Band, positions: npt.NDArray[np.int64]) -> bool:
    step = max(1, _CHUNK // max(1, kept.shape[1]))
    keys = np.arange(kept.shape[1])
    for start in range(0, len(positions), step):
        part = slice(start, start + step)
        distance = keys[None, :] - positions[part, None]
        wanted = np.ones(distance.shape, dtype=np.bool_)
        if band.low is not None:
            wanted &= distance >= band.low
        if band.high is not None:
            wanted &= distance <= band.high
        if not np.array_equal(wanted, kept[part]):
            return False
    return True


def agreed(found: Iterable[tuple[Extent, Band | None]]) -> Band | None:
    """The one band of which each grid shows what its size has room for; None if there is none."""
    pairs = list(found)
    whole = Band()
    for _, band in pairs:
        if band is None:
            return None
        whole = whole.meet(band)
    for extent, band in pairs:
        assert band is not None
        for side, shown, shows in (
            (whole.low, band.low, extent.shows_low),
            (whole.high, band.high, extent.shows_high),
        ):
            if side is not None and shown != side and (shown is not None or shows(side)):
                return None
    return whole
