"""How long workers take for pieces of work that each of them does alone, one after the other."""

from collections.abc import Iterable

Pieces = Iterable[tuple[float, int]]
"""Pairs of the seconds that a piece takes and how many such pieces there are."""


def makespan(pieces: Pieces, workers: int) -> float:
    """Seconds until the last of `workers` is done, where each takes the next piece when free.

    The smaller of two bounds: pieces in waves, longest first, that wait for their slowest; and that
    of Graham (1966), the mean load and all but a share of the longest piece. For equal pieces the
    first is exact: full waves and a last one that may be partly idle.
    """
    ordered = sorted(pieces, reverse=True)
    total = sum(seconds * count for seconds, count in ordered)
    longest = max((seconds for seconds, _ in ordered), default=0.0)
    return min(_waves(ordered, workers), total / workers + longest * (1 - 1 / workers))


def _waves(ordered: Pieces, workers: int) -> float:
    """Add up the longest piece of each wave; a wave starts at every multiple of `workers`."""
    seconds, before = 0.0, 0
    for each, count in ordered:
        started = -(-(before + count) // workers) - -(-before // workers)
        seconds += each * started
        before += count
    return seconds
