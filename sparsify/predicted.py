"""What a device tells of one site before it runs: its time with a pattern, and without."""

from dataclasses import dataclass, replace

from sparsify.pattern import Pattern
from sparsify.plugins import Device
from sparsify.site import Site
from sparsify.site_work import exact_work, pattern_work


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
        """Whether the pattern takes less time."""
        return self.seconds < self.exact_seconds


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
