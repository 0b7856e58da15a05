"""What a device tells of one site before it runs: its time with a pattern, and without."""

from dataclasses import dataclass, replace
from typing import Any

from sparsify.pattern import Pattern
from sparsify.plugins import Device
from sparsify.site import Site
from sparsify.site_work import exact_work, pattern_work

GAIN = 0.01
"""The share of the time that a pattern has to save: less is within what predictions tell apart."""


@dataclass(frozen=True)
class Predicted:
    """Seconds of one call on `device`, for so many queries and keys.

    `seconds` are those of the pattern, with choosing its blocks; `exact_seconds` those of computing
    every permitted score.
    """

    device: str
    q_length: int
    k_length: int
    seconds: float
    exact_seconds: float

    @property
    def pays(self) -> bool:
        """Whether the pattern takes less time, by more than `GAIN`."""
        return self.seconds < self.exact_seconds * (1 - GAIN)

    @staticmethod
    def from_json(told: Any) -> "Predicted":
        """Read what a plan holds.

        Raises:
            TypeError: it is something else.
        """
        found = Predicted(**told)
        lengths, seconds = (found.q_length, found.k_length), (found.seconds, found.exact_seconds)
        if not isinstance(found.device, str) or not all(type(n) is int for n in lengths):
            raise TypeError(f"predicted is {told!r}")
        if not all(isinstance(s, int | float) and 0 <= s < float("inf") for s in seconds):
            raise TypeError(f"predicted is {told!r}")
        return found


def predicted(
    device: Device, site: Site, pattern: Pattern, residual: str, max_length: int | None
) -> Predicted | None:
    """Ask a device about a site; `max_length` stands for lengths that the graph leaves open.

    None where a length or the pattern's density is not known.
    """
    known = replace(
        site, q_length=site.q_length or max_length, k_length=site.k_length or max_length
    )
    exact, sparse = exact_work(known), pattern_work(known, pattern, residual)
    if exact is None or sparse is None:
        return None
    seconds, exact_seconds = device.cost(sparse).seconds, device.cost(exact).seconds
    return Predicted(device.name, exact.q_length, exact.k_length, seconds, exact_seconds)
