"""Checks of pattern options; a refusal names the pattern, the option, its value and the range."""

from sparsify.errors import SparsifyError


def refuse(pattern: str, option: str, value: object, allowed: str) -> SparsifyError:
    """Build the error for one option."""
    return SparsifyError(f"pattern {pattern}: {option}={value!r} is not {allowed}")


def check_integer(pattern: str, option: str, value: object, least: int) -> None:
    """Insist on an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise refuse(pattern, option, value, f"an integer of at least {least}")


def check_share(pattern: str, option: str, value: object) -> None:
    """Insist on a number above 0 and at most 1."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:  # type: ignore[operator]
        raise refuse(pattern, option, value, "a number above 0 and at most 1")
