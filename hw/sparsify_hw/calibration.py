"""Measures this machine once, and keeps what was found in the user's cache folder."""

import hashlib
import json
import logging
import math
import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from sparsify.doctor import instruction_set
from sparsify.errors import SparsifyError
from sparsify.workload import MatrixWork, Workload
from sparsify_hw.cpu import RATES, Cores, Rates, attention
from sparsify_hw.fit import attentions, non_negative, rates_of, select_rates
from sparsify_hw.probe import Selecting, seconds_of

log = logging.getLogger(__name__)

_PRODUCT = MatrixWork(1024**3, 3 * 4 * 1024**2)
"""The matrix product that is timed: square, float32."""

SELECTIONS = tuple(
    Selecting(length, head_dim, heads)
    for length, head_dim, heads in ((384, 64, 8), (1536, 64, 4), (1536, 128, 4), (6144, 64, 1))
)

TOGETHER = tuple(
    Workload(1, 8, 8, length, length, head_dim, head_dim)
    for length, head_dim in ((48, 64), (160, 32), (384, 64), (1536, 64))
)
"""What is timed on all cores together."""


@dataclass(frozen=True)
class Calibration:
    """What was measured: see `cpu.RATES` and `cpu.Cores`."""

    machine: str
    rates: Rates
    fork: float
    contention: float
    matrix_mac: float


def calibrated(cores: int) -> Calibration:
    """What the cache holds for this machine and these versions; measured where it holds nothing.

    Raises:
        SparsifyError: ONNX Runtime is missing.
    """
    kept = _read(cache_path(cores))
    if kept is not None:
        return kept
    log.warning("measuring this machine for predictions; it takes some seconds, once")
    found = measured(cores)
    try:
        keep(found, cores)
    except OSError as error:
        log.warning("predictions of this machine are not kept (%s): measured every time", error)
    return found


def measured(cores: int) -> Calibration:
    """Measure this machine with so many cores."""
    works = attentions()
    rates = {
        **rates_of(works, [seconds_of(work, 1) for work in works]),
        **select_rates([(s.work, seconds_of(s, 1)) for s in SELECTIONS]),
    }
    fork, contention = _together(rates, cores)
    product = seconds_of(_PRODUCT, 1) / _PRODUCT.macs
    return Calibration(_machine(cores), rates, fork, contention, product)


def keep(found: Calibration, cores: int) -> Path:
    """Write what was measured where `calibrated` looks; others see all of it or nothing."""
    path = cache_path(cores)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(found), indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def _read(path: Path) -> Calibration | None:
    """The file's content; None where there is none, or one that another version wrote."""
    try:
        found = Calibration(**json.loads(path.read_text(encoding="utf-8")))
        numbers = [*found.rates.values(), found.fork, found.contention, found.matrix_mac]
        whole = set(found.rates) == set(RATES) and all(0 <= n < math.inf for n in numbers)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return found if whole else None


def cache_path(cores: int) -> Path:
    """The file for this machine and these versions."""
    key = hashlib.sha256(_machine(cores).encode()).hexdigest()[:16]
    return user_cache_path("sparsify") / f"host-{key}.json"


def _machine(cores: int) -> str:
    versions = (metadata.version(name) for name in ("onnx-sparsify", "onnxruntime"))
    return "; ".join((_processor(), f"{cores} cores", _level(), *versions))


def _level() -> str:
    """The kernel's level of instructions; without the library, attention runs by its definition."""
    try:
        return instruction_set()
    except SparsifyError:
        return "no library"


def _processor() -> str:
    """Vendor, family, model and name, as Linux tells them; elsewhere what Python knows."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in lines)
    told = {name.strip(): value.strip() for name, _, value in pairs}
    return " ".join(told.get(name, "") for name in wanted)


def _together(rates: Rates, cores: int) -> tuple[float, float]:
    """Fork and contention: what remains where ideal shares of the work are taken away."""
    if cores == 1:
        return 0.0, 1.0
    ideal = Cores(rates, cores, 0.0, 1.0, 0.0, 0.0)
    shares = np.array([attention(ideal, work).seconds for work in TOGETHER])
    measured = np.array([seconds_of(work, cores) for work in TOGETHER])
    matrix = np.stack([shares, np.ones(len(shares))], axis=1) / measured[:, None]
    contention, fork = non_negative(matrix, np.ones(len(shares))).tolist()
    return fork, max(contention, 1.0)
