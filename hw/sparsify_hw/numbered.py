"""A device that consists of numbers of the table and two formulas over them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sparsify.claims import Claim
from sparsify.workload import Cost, MatrixWork, Workload
from sparsify_hw.numbers import Numbers, Values, values, with_given


def _nothing(_: "Numbered") -> tuple[Claim, ...]:
    return ()


@dataclass(frozen=True)
class Numbered:
    """A device by its numbers (see `numbers.QUANTITIES`); pure, and equal where all of it is.

    `attention` and `matrices` answer from the bare numbers; `published` tells what a paper says
    about the device, beside what these numbers give.
    """

    name: str
    numbers: Numbers
    attention: Callable[[Values, Workload], Cost]
    matrices: Callable[[Values, MatrixWork], Cost]
    published: Callable[["Numbered"], tuple[Claim, ...]] = _nothing

    def cost(self, workload: Workload) -> Cost:
        """Seconds and joules of one call; the energy is an estimate."""
        return self.attention(values(self.numbers), workload)

    def dense(self, work: MatrixWork) -> Cost:
        """Seconds and joules of matrix products beside the attentions."""
        return self.matrices(values(self.numbers), work)

    def summary(self) -> str:
        """Its largest numbers, for a list of devices."""
        n = values(self.numbers)
        shown = {
            "cores": "{:.0f} cores",
            "multiprocessors": "{:.0f} units",
            "clock_hertz": "{:.3g} GHz",
            "memory_bandwidth": "{:.4g} GB/s",
            "watts": "{:.0f} W",
        }
        scale = {"clock_hertz": 1e9, "memory_bandwidth": 1e9}
        return ", ".join(
            text.format(n[name] / scale.get(name, 1)) for name, text in shown.items() if name in n
        )

    def claims(self) -> tuple[Claim, ...]:
        """What a paper published about the device, beside what these numbers give."""
        return self.published(self)

    def with_numbers(self, name: str, given: Mapping[str, object], where: str) -> "Numbered":
        """The same device with numbers from the file `where`, under another name.

        Raises:
            SparsifyError: an unknown number, or nonsense for a value.
        """
        return replace(self, name=name, numbers=with_given(self.numbers, given, where))
