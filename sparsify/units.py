"""Numbers with units, as people read them."""

import math

_PREFIXES = {-2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}
_NO_LARGE = frozenset({"s"})
"""Units that take no prefix above 1."""


def scaled(value: float, unit: str) -> str:
    """Write a number with three digits and the prefix that leaves one to three before the point."""
    rounded = float(f"{value:.3g}")
    power = math.floor(math.log10(rounded) / 3) if rounded > 0 else 0
    power = max(-2, min(power, 0 if unit in _NO_LARGE else 4))
    number = rounded / 1000.0**power
    digits = f"{number:.3g}" if number < 1000 else f"{number:.0f}"
    return f"{digits} {_PREFIXES[power]}{unit}"
