"""Times calls side by side: pairs run one right after the other, so that drift hurts both alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from sparsify import library_paths
from sparsify.runtime import BFLOAT16_OPTION
from sparsify.timing import Timing

Call = Callable[[], object]
Feeds = Mapping[str, npt.NDArray[Any]]
Values = Mapping[str, npt.NDArray[Any] | ort.OrtValue]
"""Inputs of which some have a type that numpy lacks: those are ONNX Runtime's own values."""

SHORTEST = 0.01
"""Seconds that one timed sample lasts at least: shorter calls are repeated within it."""


@dataclass(frozen=True)
class Ratio:
    """Ratios of the pairs of one comparison: median, smallest and largest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"


def ratio(mine: Timing, base: Timing) -> Ratio:
    """How long one call took relative to another, pair by pair."""
    each = [a / b for a, b in zip(mine.seconds, base.seconds, strict=True)]
    return Ratio(statistics.median(each), min(each), max(each))


def interleave(calls: Mapping[str, Call], pairs: int) -> dict[str, Timing]:
    """Time `pairs` rounds of all calls in turn, after a warm-up that also sets the repeats."""
    repeats = {name: _repeats(call) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(pairs):
        for name, call in calls.items():
            seconds[name].append(_sample(call, repeats[name]))
    return {name: Timing(name, tuple(runs)) for name, runs in seconds.items()}


def _repeats(call: Call) -> int:
    call()
    return max(1, int(SHORTEST / max(_sample(call, 1), 1e-6)))


def _sample(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def session(
    model: str | Path | bytes, *, threads: int, library: bool = True, bfloat16: bool = False
) -> Any:
    """Open a session whose idle threads sleep: spinning ones would slow down the rival's turn."""
    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors are raised, which is enough
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if bfloat16:
        options.add_session_config_entry(BFLOAT16_OPTION, "1")
    for path in library_paths() if library else ():
        options.register_custom_ops_library(str(path))
    source = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def bound(active: Any, feeds: Values) -> Call:
    """One run of a session on these inputs, into outputs that are allocated once."""
    names = [output.name for output in active.get_outputs()]
    values = ort_values(feeds)
    results = active.run_with_ort_values(names, values)
    binding = active.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name, result in zip(names, results, strict=True):
        binding.bind_ortvalue_output(name, result)
    return lambda: active.run_with_iobinding(binding)


def ort_values(feeds: Values) -> dict[str, Any]:
    """The inputs as values that ONNX Runtime reads in place."""
    return {
        name: value
        if isinstance(value, ort.OrtValue)
        else ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
        for name, value in feeds.items()
    }
