"""Sizes to evaluate masks at: what the open dimensions of a model's inputs may be together."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import ValueInfoProto

BATCH, LENGTH, PAST, TOTAL, OTHER = "batch", "length", "past", "total", "other"

_VECTORS = {LENGTH: (1, 0, 0), PAST: (0, 1, 0), OTHER: (0, 0, 1), TOTAL: (1, 1, 0)}
"""What each role is a sum of: new tokens, cached tokens, and a length of its own."""

_MOST_GROUPS = 5

LARGEST = 8400
"""The longest square grid that is evaluated."""

_DOUBLED = 4200

_CERTAIN = 1 << 20
"""A number from here on is no window: no input is that long."""

Dims = Mapping[str, tuple[int, ...]]
"""The dimensions of inputs, by name."""

Roles = Mapping[str, str]
"""What each open dimension is, by slot."""


@dataclass(frozen=True)
class Lengths:
    """One choice of sizes: new tokens, tokens that a cache holds, and tokens of another input."""

    batch: int
    length: int
    past: int = 0
    other: int = 11

    def of(self, role: str) -> int:
        """The size of a dimension by its role."""
        if role == TOTAL:
            return self.length + self.past
        return {BATCH: self.batch, LENGTH: self.length, PAST: self.past, OTHER: self.other}[role]


BASE = (
    Lengths(2, 7, 5, 20),
    Lengths(3, 33, 0, 33),
    Lengths(2, 1, 40, 9),
    Lengths(3, 130, 3, 50),
    Lengths(2, 12, 131, 277),
)
"""Lengths that every mask is evaluated at; numbers that no input has do not matter."""

PROBE = Lengths(3, 7, 5, 20)


def slots_of(inputs: Mapping[str, ValueInfoProto]) -> dict[str, list[str]]:
    """The open dimensions of each input, by what must be one size: equal names share a slot.

    Dimensions of inputs whose names differ in numbers only, as the caches of layers do, count as
    one, whatever an exporter called them.
    """
    merged: dict[str, str] = {}
    raw = {name: list(_raw_slots(value)) for name, value in inputs.items()}
    for name, slots in raw.items():
        pattern = re.sub(r"\d+", "#", name)
        for axis, slot in enumerate(slots):
            if slot and pattern != name:
                first = merged.setdefault(f"{pattern}/{axis}/{len(slots)}", slot)
                merged.setdefault(slot, first)
    return {name: [_root(slot, merged) for slot in slots] for name, slots in raw.items()}


def _raw_slots(value: ValueInfoProto) -> Iterator[str]:
    """A slot for each dimension, "" where it is a number."""
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.HasField("dim_value"):
            yield ""
        else:
            yield dim.dim_param or f"{value.name}/{axis}"


def _root(slot: str, merged: Mapping[str, str]) -> str:
    seen = {slot}
    while merged.get(slot, slot) not in seen:
        slot = merged[slot]
        seen.add(slot)
    return slot


def assignments(slots: Mapping[str, list[str]]) -> Iterator[Roles]:
    """Every choice of roles for open dimensions; none where there are too many."""
    first = {s[0] for s in slots.values() if len(s) > 1 and s[0]}
    others = dict.fromkeys(slot for s in slots.values() for slot in s if slot and slot not in first)
    if len(others) > _MOST_GROUPS:
        return
    choices = [(LENGTH,), *[(OTHER, PAST, TOTAL, LENGTH)] * (len(others) - 1)]
    for roles in itertools.product(*choices[: len(others)]):
        yield dict.fromkeys(first, BATCH) | dict(zip(others, roles, strict=True))


def most_general(found: Sequence[Roles]) -> list[Roles]:
    """The choices that are no special case of another: equal sizes may differ in that one."""
    kept: list[Roles] = []
    for roles in found:
        if not any(_covers(other, roles) for other in kept):
            kept = [other for other in kept if not _covers(roles, other)] + [roles]
    return kept


def _covers(general: Roles, special: Roles) -> bool:
    """Whether new meanings for the three lengths turn one choice into the other."""
    for meanings in itertools.product(_VECTORS.values(), repeat=3):
        if all(
            role == special[slot] == BATCH
            or (role != BATCH and _sum(_VECTORS[role], meanings) == _VECTORS.get(special[slot]))
            for slot, role in general.items()
        ):
            return True
    return False


def _sum(vector: tuple[int, int, int], meanings: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(
        sum(v * m[axis] for v, m in zip(vector, meanings, strict=True)) for axis in range(3)
    )


def dims_of(
    inputs: Mapping[str, ValueInfoProto],
    slots: Mapping[str, list[str]],
    roles: Roles,
    lengths: Lengths,
) -> Dims:
    """The dimensions under a choice of roles of every input whose rank is known."""
    return {
        name: tuple(
            lengths.of(roles.get(slot, LENGTH)) if slot else dim.dim_value
            for slot, dim in zip(slots[name], value.type.tensor_type.shape.dim, strict=True)
        )
        for name, value in inputs.items()
        if value.type.tensor_type.HasField("shape")
    }


def further(numbers: Iterable[int], edges: Iterable[int]) -> list[Lengths]:
    """Lengths beyond each number that may be a window, and up to each edge of a stored mask."""
    found = set[Lengths]()
    for number in numbers:
        if number < _DOUBLED // 2:
            far = 2 * number + 3
            found |= {Lengths(2, far, 2), Lengths(3, 5, far, far), Lengths(2, far, 0, far)}
        elif number + 9 <= LARGEST:
            far = number + 9
            found |= {Lengths(1, far, 0, far), Lengths(1, 5, 2 * far, 2 * far)}
        elif number < _CERTAIN:
            found |= {Lengths(1, 3, 2 * number + 3, 2 * number + 3)}
    for edge in edges:
        if 9 < edge <= LARGEST:
            found |= {Lengths(1, edge, 0), Lengths(2, edge - 8, 8), Lengths(2, 1, edge - 1)}
    return sorted(found, key=lambda lengths: (lengths.length, lengths.past, lengths.batch))


def long_enough(number: int) -> int:
    """The number of keys from which on a grid shows whether a number is a window."""
    return 0 if number >= _CERTAIN else number + 2
