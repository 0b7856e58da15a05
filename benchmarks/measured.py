"""Times one case and its rivals in turn, and holds the result against the case's limit."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.paired import Ratio, bound, interleave, ratio, session
from benchmarks.problem import density
from benchmarks.rivals import ENTRIES, Entry
from sparsify.timing import Timing

AGREE = 1e-5
AGREE_BFLOAT16 = 1e-2
"""Relative L2 difference from a rival above which a comparison of times means nothing."""

MORE_PAIRS = 3
"""How many times as many pairs are run of a case that is brief."""


@dataclass(frozen=True)
class Measured:
    """What came out for one case: the times by name, and the share of the scores computed."""

    case: Case
    times: Mapping[str, Timing]
    density: float

    @property
    def rival(self) -> Timing:
        """The fastest of those that the limit names."""
        return min((self.times[name] for name in self.case.limit.to), key=lambda time: time.median)

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
    entries = {name: ENTRIES[name](case.problem) for name in case.entries}
    sessions = {
        name: session(
            entry.model,
            threads=entry.threads or case.threads or threads,
            bfloat16=entry.bfloat16,
        )
        for name, entry in entries.items()
    }
    _check_agreement(case, entries, sessions)
    calls = {name: bound(active, entries[name].feeds) for name, active in sessions.items()}
    times = interleave(calls, pairs * (MORE_PAIRS if case.brief else 1))
    return Measured(case, times, density(case.problem, entries["ours"].feeds.get("block_count")))


def _check_agreement(case: Case, entries: Mapping[str, Entry], sessions: Mapping[str, Any]) -> None:
    """Stop where a rival that should compute the same does not: its time would mean nothing."""
    same = [name for name, entry in entries.items() if entry.same]
    if len(same) == 1:
        return
    outputs = {}
    for name in same:
        output = sessions[name].run(None, dict(entries[name].feeds))[0]
        outputs[name] = entries[name].heads_first(output, case.problem)
    mine = outputs.pop("ours")
    for name, theirs in outputs.items():
        error = np.linalg.norm(mine - theirs) / np.linalg.norm(theirs)
        if not error <= (AGREE_BFLOAT16 if case.problem.bfloat16 else AGREE):
            what = f"{case.problem.what}, {case.problem.keys} keys"
            raise SystemExit(f"{what}: ours and {name} disagree: relative L2 {error:.1e}")
