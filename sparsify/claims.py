"""What a paper published about its machine, beside what a device's model says of the same."""

from dataclasses import asdict, dataclass
from typing import Any

from sparsify import plugins


@dataclass(frozen=True)
class Claim:
    """One published figure and ours.

    `setting` is what our figure assumes; `reconstructed` which of its assumptions the source does
    not give, and why the two may differ. `ours` is a text with its unit, "-" where the model has
    no figure.
    """

    paper: str
    quantity: str
    setting: str
    ours: str
    published: str
    reconstructed: str


def all_claims() -> list[tuple[str, Claim]]:
    """The claims of every device that has some, by the device's name."""
    return [(name, claim) for name, device in plugins.every("devices") for claim in _claims(device)]


def claims_json(rows: list[tuple[str, Claim]]) -> list[dict[str, Any]]:
    """The claims as plain data."""
    return [{"device": name, **asdict(claim)} for name, claim in rows]


def _claims(device: Any) -> tuple[Claim, ...]:
    told = getattr(device, "claims", None)
    return () if told is None else tuple(told())
