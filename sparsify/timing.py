"""Times models side by side in one run, interleaved, so that drift hurts all alike."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsify import runtime
from sparsify.feeds import Feeds


@dataclass(frozen=True)
class Timing:
    """Seconds of each counted run of one model, in order."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """Fastest and slowest run, in seconds."""
        return min(self.seconds), max(self.seconds)


def ratio(timing: Timing, base: Timing) -> float:
    """Median over the pairs of runs of this time to the base's time."""
    pairs = zip(timing.seconds, base.seconds, strict=True)
    return statistics.median(mine / theirs for mine, theirs in pairs)


def bench(
    models: Sequence[str | Path],
    feeds: Feeds,
    *,
    pairs: int = 7,
    threads: int | None = None,
    library: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Timing]:
    """Time `pairs` rounds of all models in turn, after one round of warm-up.

    Raises:
        SparsifyError: ONNX Runtime is missing, or a model does not run on these inputs.
    """
    sessions = [runtime.session(model, library=library, threads=threads) for model in models]
    wanted = [[output.name for output in active.get_outputs()] for active in sessions]
    for active in sessions:
        runtime.run(active, feeds)
    seconds: list[list[float]] = [[] for _ in models]
    for done in range(pairs):
        for index, active in enumerate(sessions):
            start = time.perf_counter()
            active.run(wanted[index], dict(feeds))
            seconds[index].append(time.perf_counter() - start)
        progress(done + 1)
    return [Timing(str(model), tuple(runs)) for model, runs in zip(models, seconds, strict=True)]
