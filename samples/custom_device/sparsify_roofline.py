"""A device by the roofline rule (Williams et al. 2009): arithmetic or memory, the slower counts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Roofline:
    """An accelerator by three numbers of its data sheet; the ones here are invented."""

    name: str = "roofline"
    flops_per_second: float = 1e13
    bytes_per_second: float = 1e11
    seconds_per_call: float = 2e-5

    def seconds(self, workload):
        """Predicted seconds of one call of float32 attention."""
        w = workload
        scores = w.batch * w.heads * w.q_length * w.k_length * w.density
        flops = 2 * scores * (w.head_dim + w.value_dim)
        queries = w.heads * w.q_length * (w.head_dim + w.value_dim)
        keys = w.kv_heads * w.k_length * (w.head_dim + w.value_dim)
        moved = 4 * w.batch * (queries + keys)
        calls = 2 if w.dynamic else 1
        busy = max(flops / self.flops_per_second, moved / self.bytes_per_second)
        return busy + calls * self.seconds_per_call


ROOFLINE = Roofline()
