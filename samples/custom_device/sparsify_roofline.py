"""A device by the roofline rule (Williams et al. 2009): arithmetic or memory, the slower counts."""

from dataclasses import dataclass

from sparsify.workload import Cost


@dataclass(frozen=True)
class Roofline:
    """An accelerator by four numbers of its data sheet; the ones here are invented."""

    name: str = "roofline"
    flops_per_second: float = 1e13
    bytes_per_second: float = 1e11
    seconds_per_call: float = 2e-5
    watts: float = 50.0

    def cost(self, workload):
        """Predicted seconds and joules of one call."""
        w = workload
        calls = 1 + w.selector.calls
        compute = 2 * (w.macs + w.selector.macs) / self.flops_per_second
        memory = w.io_bytes / self.bytes_per_second
        seconds = max(compute, memory) + calls * self.seconds_per_call
        bound = "compute" if compute > memory else "memory"
        return Cost(seconds, seconds * self.watts, bound)


ROOFLINE = Roofline()
