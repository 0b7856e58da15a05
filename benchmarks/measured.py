"""Times one case and its rivals in turn, and holds the result against the case's limit."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from benchmarks.cases import Case
from benchmarks.libraries import LIBRARIES, Unavailable
from benchmarks.paired import Ratio, interleave, ratio
from benchmarks.problem import Problem, density
from benchmarks.rivals import ENTRIES, Running
from sparsify.timing import Timing

AGREE = 1e-5
AGREE_BFLOAT16 = 1e-2
"""Relative L2 difference from a rival above which a comparison of times means nothing."""

MORE_PAIRS = 3
"""How many times as many pairs are run of a case that is brief."""


@dataclass(frozen=True)
class Measured:
    """What came out for one case: the times by name, and the share of the scores computed.

    `absent` are those that could not be timed here, and why.
    """

    case: Case
    times: Mapping[str, Timing]
    density: float
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def rival(self) -> Timing:
        """The fastest of those that the limit names and that could be timed."""
        timed = (self.times[name] for name in self.case.limit.to if name in self.times)
        return min(timed, key=lambda time: time.median)

    @property
    def found(self) -> Ratio:
        """The ratio that the limit is about."""
        ours, without = self.times["ours"], self.case.limit.without
        if without:
            pairs = zip(ours.seconds, self.times[without].seconds, strict=True)
            ours = Timing("added", tuple(mine - base for mine, base in pairs))
        return ratio(ours, self.rival)

    @property
    def met(self) -> bool:
        """Whether the case is within its limit."""
        limit, mine = self.case.limit, self.times["ours"].seconds
        gap = statistics.median(a - b for a, b in zip(mine, self.rival.seconds, strict=True))
        within = limit.seconds > 0 and gap <= limit.seconds
        return self.found.median <= limit.most or within

    def ratio(self, mine: str, base: str) -> Ratio | None:
        """The ratio of two times, None where one was not measured."""
        if mine in self.times and base in self.times:
            return ratio(self.times[mine], self.times[base])
        return None


def measure(case: Case, pairs: int, threads: int) -> Measured:
    """Time one case and its rivals in turn, after a look at whether they compute the same."""
    threads = case.threads or threads
    running: dict[str, Running] = {}
    absent: dict[str, str] = {}
    for name in case.rivals:
        try:
            running[name] = _started(name, case.problem, threads)
        except Unavailable as error:
            absent[name] = str(error)
    ours = ENTRIES["ours"](case.problem)
    running["ours"] = ours.running(case.problem, threads)
    _check_agreement(case, running)
    calls = {name: one.call for name, one in running.items()}
    times = interleave(calls, pairs * (MORE_PAIRS if case.brief else 1))
    kept = density(case.problem, ours.feeds.get("block_count"))
    return Measured(case, times, kept, absent)


def _started(name: str, problem: Problem, threads: int) -> Running:
    if name in LIBRARIES:
        return LIBRARIES[name](problem, threads)
    return ENTRIES[name](problem).running(problem, threads)


def _check_agreement(case: Case, running: Mapping[str, Running]) -> None:
    """Stop where a rival that should compute the same does not: its time would mean nothing."""
    same = {name: one for name, one in running.items() if one.same and name != "ours"}
    if not same:
        return
    mine = running["ours"].output()
    for name, one in same.items():
        theirs = one.output()
        error = np.linalg.norm(mine - theirs) / np.linalg.norm(theirs)
        if not error <= (AGREE_BFLOAT16 if case.problem.bfloat16 else AGREE):
            what = f"{case.problem.what}, {case.problem.keys} keys"
            raise SystemExit(f"{what}: ours and {name} disagree: relative L2 {error:.1e}")
