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
from sparsify_hw.cpu import RATES, Cores, Rates, attention, choice
from sparsify_hw.fit import non_negative, probes, rates_of
from sparsify_hw.probe import Selecting, fastest

log = logging.getLogger(__name__)

_PRODUCT = MatrixWork(1024**3, 3 * 4 * 1024**2)
"""The matrix product that is timed: square, float32."""

TOGETHER: tuple[Workload | Selecting, ...] = (
    *(
        Workload(1, 8, 8, length, length, head_dim, head_dim)
        for length, head_dim in ((48, 64), (160, 32), (384, 64), (768, 128), (1536, 64))
    ),
    *(Selecting(length, 64, 8) for length in (96, 160, 384, 1536)),
)
"""What is timed on all cores together."""

READING = Workload(1, 8, 8, 1, 12288, 128, 128)
"""What reads memory and does little else: 100 MB of keys and values for one query of each head."""


@dataclass(frozen=True)
class Calibration:
    """What was measured: see `cpu.RATES` and `cpu.Cores`."""

    machine: str
    rates: Rates
    fork: float
    choice_fork: float
    contention: float
    far_byte: float
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
    timed = probes()
    rates = rates_of(timed, fastest(timed, 1))
    product = fastest([_PRODUCT], 1)[0] / _PRODUCT.macs
    far_byte = fastest([READING], cores)[0] / READING.io_bytes
    return Calibration(_machine(cores), rates, *_together(rates, cores), far_byte, product)


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
        single = (found.fork, found.choice_fork, found.contention, found.far_byte, found.matrix_mac)
        whole = set(found.rates) == set(RATES) and all(
            0 <= n < math.inf for n in (*found.rates.values(), *single)
        )
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


def _together(rates: Rates, cores: int) -> tuple[float, float, float]:
    """Fork, that of choosing, and contention: what remains of ideal shares of one core's times."""
    if cores == 1:
        return 0.0, 0.0, 1.0
    shares = np.array([_share(rates, probe, cores) for probe in TOGETHER]) * fastest(TOGETHER, 1)
    calls = [(1, 0) if isinstance(probe, Workload) else (0, probe.work.calls) for probe in TOGETHER]
    times = np.array(fastest(TOGETHER, cores))
    matrix = np.column_stack([np.array(calls, float), shares])
    fork, choice_fork, contention = non_negative(matrix / times[:, None], np.ones(len(times)))
    if contention < 1:  # cores do not help each other: what is left belongs to handing out work
        left = np.clip(1 - shares / times, 0, None)
        (fork, choice_fork), contention = non_negative(matrix[:, :2] / times[:, None], left), 1.0
    return float(fork), float(choice_fork), float(contention)


def _share(rates: Rates, probe: Workload | Selecting, cores: int) -> float:
    """The time on so many cores as a share of that on one, where nothing is lost."""

    def seconds(count: int) -> float:
        ideal = Cores(rates, count, 0.0, 0.0, 1.0, 0.0, 0.0)
        if isinstance(probe, Selecting):
            return choice(ideal, probe.work)
        return attention(ideal, probe).seconds

    return seconds(cores) / seconds(1)
