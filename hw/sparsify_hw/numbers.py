"""The table of numbers that describe devices: each with its unit, where it comes from, and when.

`devices.toml` holds one section per device. A user's own file overrides single numbers of one of
them (docs/devices.md).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from sparsify.errors import SparsifyError
from sparsify.plugins import unknown
from sparsify.toml import parse_toml
from sparsify_hw.cpu import RATES, READING

BASES = ("datasheet", "measured", "estimate", "given")
"""Where a number comes from: its maker, a measurement, an estimate, or the user's own file."""

CYCLES = {rate: f"{rate}_cycles" for rate in RATES.keys() - READING - {"mac"}}
"""The quantities of what the kernel of a CPU does beside multiplying and reading, by rate."""

QUANTITIES = {
    "area_overhead": "area that an extension adds to the array, as a share",
    "bfloat16_efficiency": "share of the peak in bfloat16, where it differs",
    "bfloat16_flops": "FLOP/s of dense bfloat16 matrices, all units together",
    "bfloat16_per_cycle": "FLOP/cycle of one core in bfloat16 matrices",
    "clock_hertz": "cycles/s under load",
    "cores": "cores of a CPU",
    "core_watts": "W of one core under full load",
    "detector_macs": "multiply-adds/cycle of the detector",
    "efficiency": "share of the peak arithmetic that the best known kernel reaches",
    "exponentials_per_cycle": "exponentials/cycle of one multiprocessor",
    "float16_flops": "FLOP/s of dense float16 matrices, all units together",
    "float32_flops": "FLOP/s of float32, all units together",
    "float32_per_cycle": "FLOP/cycle of one core in float32",
    "fragment": "rows and columns of the fragment that an instruction multiplies or skips",
    "fragment_overhead_cycles": "cycles of reading the metadata of one fragment, kept or not",
    "idle_watts": "W without work",
    "joules_per_byte": "J of a byte from memory",
    "joules_per_mac": "J of a multiply-add of the main array, operands at hand",
    "joules_per_operand_byte": "J of a byte that the main array fetches from its buffers",
    "l2_bandwidth": "bytes/s from the second-level cache, all units together",
    "l2_bytes": "bytes of the second-level cache",
    "launch_seconds": "s of starting one kernel, or of handing work to all cores",
    "macs_per_cycle": "multiply-adds/cycle of the main array",
    "memory_bandwidth": "bytes/s from memory",
    "multiprocessors": "multiprocessors of a GPU, or independent units of an accelerator",
    "query_tile": "queries that one multiprocessor takes at once",
    "region_energy": "energy that the logic for regions adds to the array's, as a share",
    "region_overhead": "time that the logic for regions adds to computing them, as a share",
    "watts": "W under full load",
    **{name: f"cycles of {RATES[rate]}, on one core" for rate, name in CYCLES.items()},
}
"""Every quantity that a device may have, with its unit."""

SHARES = frozenset(
    {"area_overhead", "bfloat16_efficiency", "efficiency", "region_energy", "region_overhead"}
)
"""Quantities that are at most 1."""

COUNTS = frozenset({"cores", "fragment", "multiprocessors", "query_tile"})
"""Quantities that are whole numbers."""

MAY_BE_ZERO = frozenset(
    {
        *SHARES - {"efficiency", "bfloat16_efficiency"},
        *CYCLES.values(),
        "fragment_overhead_cycles",
        "idle_watts",
    }
)


@dataclass(frozen=True)
class Number:
    """One row of the table: the value, its basis (one of `BASES`), source and date."""

    value: float
    basis: str
    source: str
    date: str


Numbers = Mapping[str, Number]
"""The numbers of one device, by quantity."""


@lru_cache(maxsize=1)
def table() -> Mapping[str, Numbers]:
    """All built-in devices.

    Raises:
        SparsifyError: a row without source or date, or with nonsense for a value.
    """
    text = resources.files("sparsify_hw").joinpath("devices.toml").read_text(encoding="utf-8")
    sections = parse_toml(text, "devices.toml")
    return {name: _rows(section, f"devices.toml: {name}") for name, section in sections.items()}


def numbers_of(device: str) -> Numbers:
    """The numbers of one built-in device."""
    return table()[device]


Values = Mapping[str, float]
"""The numbers of one device without where they come from."""


def values(numbers: Numbers) -> Values:
    """The bare numbers."""
    return {name: number.value for name, number in numbers.items()}


def with_given(numbers: Numbers, given: Mapping[str, object], where: str) -> Numbers:
    """Put values in place of a device's own; `where` is the file that they come from.

    Raises:
        SparsifyError: a quantity that the device does not have, or nonsense for a value.
    """
    for name in given:
        if name not in numbers:
            raise SparsifyError(f"{where}: {unknown('number of this device', name, numbers)}")
    rows = {name: Number(_value(v, name, where), "given", where, "") for name, v in given.items()}
    changed = {**numbers, **rows}
    of = values(changed)
    if "watts" in of and of.get("idle_watts", 0.0) > of["watts"]:
        raise SparsifyError(
            f"{where}: idle_watts is above watts; give less without work than under"
        )
    return changed


def _rows(section: Mapping[str, object], where: str) -> Numbers:
    return {name: _row(row, name, where) for name, row in section.items()}


def _row(row: object, name: str, where: str) -> Number:
    if name not in QUANTITIES:
        raise SparsifyError(f"{where}: {unknown('quantity', name, QUANTITIES)}")
    if not isinstance(row, Mapping) or set(row) != {"value", "basis", "source", "date"}:
        raise SparsifyError(f"{where}.{name}: give value, basis, source and date")
    basis, source, date = (row[key] for key in ("basis", "source", "date"))
    if basis not in BASES[:-1]:
        raise SparsifyError(f"{where}.{name}: {unknown('basis', str(basis), BASES[:-1])}")
    if not (isinstance(source, str) and source and isinstance(date, str) and date):
        raise SparsifyError(f"{where}.{name}: source and date are empty; say where it comes from")
    return Number(_value(row["value"], name, where), basis, source, date)


def _value(value: object, name: str, where: str) -> float:
    """A number that makes sense for its quantity."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SparsifyError(f"{where}: {name} is {value!r}; give a number ({QUANTITIES[name]})")
    if value < 0 or (value == 0 and name not in MAY_BE_ZERO):
        raise SparsifyError(
            f"{where}: {name} is {value}; give a positive number ({QUANTITIES[name]})"
        )
    if name in SHARES and value > 1:
        raise SparsifyError(f"{where}: {name} is {value}; give at most 1 ({QUANTITIES[name]})")
    if name in COUNTS and value != int(value):
        raise SparsifyError(f"{where}: {name} is {value}; give a whole number ({QUANTITIES[name]})")
    return float(value)
