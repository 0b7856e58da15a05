"""This machine as a device: the rates of its cores, measured once and kept in the user's cache."""

import os
from dataclasses import dataclass
from functools import lru_cache

from sparsify.workload import Cost, MatrixWork, Workload
from sparsify_hw.calibration import calibrated, keep, measured
from sparsify_hw.cpu import Cores, attention, matrices
from sparsify_hw.numbers import numbers_of


@dataclass(frozen=True)
class Host:
    """The machine that sparsify runs on, with so many `threads`; all of them where none are said.

    The first question takes some seconds, which are spent on measuring; the answers are kept
    for this machine and these versions.
    """

    name: str = "host"
    threads: int | None = None

    def cost(self, workload: Workload) -> Cost:
        """Seconds and joules of one call; the energy is an estimate."""
        return attention(_cores(self.threads), workload)

    def dense(self, work: MatrixWork) -> Cost:
        """Seconds and joules of matrix products beside the attentions."""
        return matrices(_cores(self.threads), work)

    def calibrate(self) -> str:
        """Measure again, and say where the result is kept."""
        path = keep(measured(available()), available())
        _cores.cache_clear()
        return str(path)


def available() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@lru_cache
def _cores(threads: int | None) -> Cores:
    found = calibrated(available())
    return Cores(
        rates=found.rates,
        count=threads or available(),
        fork=found.fork,
        choice_fork=found.choice_fork,
        contention=found.contention,
        far_byte=found.far_byte,
        matrix_mac=found.matrix_mac,
        watts=numbers_of("host")["core_watts"].value,
    )


HOST = Host()
