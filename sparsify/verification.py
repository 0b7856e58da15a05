"""Runs a model before and after, and says by how much every output changed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsify import runtime
from sparsify.errors import SparsifyError
from sparsify.feeds import Feeds

_RUNS, _LONG = 10, 2.0
"""A model is timed by so many runs; none begins after so many seconds."""


@dataclass(frozen=True)
class OutputError:
    """How one output differs from the original's, in the worst of the inputs tried.

    `max_abs` is the largest absolute difference, `rel_l2` the L2 norm of the difference over that
    of the original, `cosine` the cosine similarity. Places where the original is not finite are
    left out and counted in `non_finite`.
    """

    name: str
    max_abs: float
    rel_l2: float
    cosine: float
    non_finite: int = 0

    def to_json(self) -> dict[str, object]:
        """The stable fields of a report."""
        return {
            "name": self.name,
            "max_abs": self.max_abs,
            "rel_l2": self.rel_l2,
            "cosine": self.cosine,
        }


@dataclass(frozen=True)
class Ran:
    """What a model answers to each set of inputs; the seconds of one run on the first, if timed."""

    outputs: list[dict[str, npt.NDArray[Any]]]
    seconds: float | None = None


@dataclass(frozen=True)
class Verification:
    """The errors of all outputs on `inputs` ("random" or "data"), or why there was no run.

    `seconds` are those of one run of the original and of the changed model, where the user said
    what to run on.
    """

    inputs: str
    outputs: tuple[OutputError, ...] = ()
    skipped: str | None = None
    seconds: tuple[float, float] | None = None

    @property
    def worst(self) -> float:
        """The largest relative L2 error of all outputs, 0 when nothing was run."""
        return max((output.rel_l2 for output in self.outputs), default=0.0)

    def to_json(self) -> dict[str, object]:
        """The stable fields of a report."""
        result: dict[str, object] = {
            "inputs": self.inputs,
            "outputs": [output.to_json() for output in self.outputs],
        }
        if self.skipped is not None:
            result["skipped"] = self.skipped
        if self.seconds is not None:
            result["seconds"] = dict(zip(("original", "changed"), self.seconds, strict=True))
        return result


def verify(
    original: str | Path,
    changed: str | Path,
    feeds: Sequence[Feeds],
    *,
    inputs: str = "data",
    library: bool = True,
    timed: bool = False,
) -> Verification:
    """Run both models on every set of inputs and compare all outputs that both have.

    Raises:
        SparsifyError: ONNX Runtime is missing, or runs one of the models not at all.
    """
    wanted = run_model(original, feeds, library=library, timed=timed)
    got = run_model(changed, feeds, library=library, timed=timed)
    return verification_of(inputs, wanted, got)


def verification_of(inputs: str, wanted: Ran, got: Ran) -> Verification:
    """Compare what the original and the changed model answered."""
    timed = wanted.seconds is not None and got.seconds is not None
    seconds = (wanted.seconds or 0.0, got.seconds or 0.0) if timed else None
    return Verification(inputs, compare(wanted.outputs, got.outputs), seconds=seconds)


def noise_floor(original: str | Path, feeds: Sequence[Feeds]) -> float:
    """How far the original is from itself at another optimisation level (relative L2, worst)."""
    plain = run_model(original, feeds, library=False)
    other = run_model(original, feeds, library=False, optimize=False)
    return max((output.rel_l2 for output in compare(plain.outputs, other.outputs)), default=0.0)


def run_model(
    model: str | Path,
    feeds: Sequence[Feeds],
    *,
    library: bool,
    optimize: bool = True,
    timed: bool = False,
) -> Ran:
    """All outputs of a model, for each set of inputs.

    Raises:
        SparsifyError: ONNX Runtime is missing, or does not run the model.
    """
    active = runtime.session(model, library=library, optimize=optimize)
    try:
        outputs = [runtime.run(active, feed) for feed in feeds]
    except SparsifyError as error:
        raise SparsifyError(
            f"{model}: {error}; give real shapes (--shape, --dim) or --data"
        ) from error
    return Ran(outputs, _seconds(active, feeds[0]) if timed and feeds else None)


def _seconds(active: Any, feed: Feeds) -> float:
    """The fastest of a few more runs."""
    spent: list[float] = []
    while len(spent) < _RUNS and sum(spent) < _LONG:
        start = time.perf_counter()
        runtime.run(active, feed)
        spent.append(time.perf_counter() - start)
    return min(spent)


def compare(wanted: Sequence[Feeds], got: Sequence[Feeds]) -> tuple[OutputError, ...]:
    """The worst error of each output over all sets of inputs."""
    errors = []
    for name in wanted[0]:
        if name not in got[0]:
            raise SparsifyError(f"output {name!r} is missing from the changed model")
        each = [output_error(name, a[name], b[name]) for a, b in zip(wanted, got, strict=True)]
        errors.append(max(each, key=lambda error: error.rel_l2))
    return tuple(errors)


def output_error(name: str, wanted: npt.NDArray[Any], got: npt.NDArray[Any]) -> OutputError:
    """How `got` differs from `wanted`, both of one shape."""
    if wanted.shape != got.shape:
        raise SparsifyError(f"output {name!r} changed shape: {wanted.shape} became {got.shape}")
    if not np.issubdtype(wanted.dtype, np.number):
        wanted, got = (wanted == wanted).astype(np.int8), (wanted == got).astype(np.int8)
    before, after = wanted.astype(np.float64).ravel(), got.astype(np.float64).ravel()
    finite = np.isfinite(before)
    before, after = before[finite], after[finite]
    dropped = int(finite.size - finite.sum())
    if not np.isfinite(after).all():
        return OutputError(name, np.inf, np.inf, 0.0, dropped)
    if not before.size:
        return OutputError(name, 0.0, 0.0, 1.0, dropped)
    difference = float(np.linalg.norm(after - before))
    norms = float(np.linalg.norm(before)), float(np.linalg.norm(after))
    relative = difference / norms[0] if norms[0] else float(difference > 0)
    product = norms[0] * norms[1]
    cosine = float(before @ after) / product if product else float(difference == 0)
    return OutputError(name, float(np.abs(after - before).max()), relative, cosine, dropped)
