"""Attention on a CPU core by core, as the native kernel does it: panels of queries, keys in place.

A panel is one query block: its queries stand in the lanes of vectors, so that every kept key costs
the same arithmetic wherever it stands. What a panel takes is fixed work for its queries, work for
every kept key, and a little for every kept block. Panels are independent; threads take them in
runs. With few queries the time goes into reading keys and values, which threads share evenly.

The time of one core is linear in its rates, so that they can be fitted to measured times.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsify.workload import ITEM_BYTES, Cost, MatrixWork, SelectorWork, Workload, cost_of
from sparsify_hw.schedule import makespan

LANES = 16
"""Rows of a panel come in vectors of at most so many."""

FEW = 8
"""Up to so many rows are not put into lanes: the kernel takes one at a time."""

RUN = 2**21
"""Multiply-adds that threads take at once, at least; the kernel cuts a call into such runs."""

NEAR = 2**20
"""Bytes of keys and values of a head that stay near a core; what is beyond is far."""

CACHED = 2**24
"""Bytes of keys and values of a call that stay in the last cache from one call to the next."""

RATES = {
    "mac": "a multiply-add of queries in lanes",
    "score": "the softmax of one score",
    "block": "a kept block of one panel",
    "element": "an element of query or output",
    "panel": "one panel",
    "call": "one call of the operator",
    "far_byte": "a byte of keys and values that lies far",
    "convert": "an element of keys and values of a half-precision type, for each panel",
    "bias": "adding a number to a score",
    "bias_row": "a row of numbers to add, of one block of a list",
    "bias_far_byte": "a byte of numbers to add beyond the last cache, each time it is read",
    "bias_group": "a number to add to a left-out score, as a part of its group's",
    "mask": "asking of a score whether it is forbidden",
    "split": "a key of one panel, asked for whether a mask forbids it or a group holds it",
    "group": "a left-out group of one panel",
    "group_panel": "one panel with left-out groups",
    "mean": "an element of keys and values that goes into the means of groups",
    "few_mac": "a multiply-add with few queries",
    "few_byte": "a byte of keys and values with few queries",
    "few_far_byte": "the same, beyond the last cache",
    "few_row": "a row with few queries",
    "few_bias": "adding a number to a score, with few queries",
    "select_mac": "a multiply-add of choosing blocks",
    "select_score": "a predicted score",
    "select_choice": "a block to choose or leave",
    "select_call": "one call of an operator that chooses",
    "select_element": "an element of queries and keys that is read for choosing",
}
"""Seconds of one core for one unit of each kind of work."""

READING = frozenset({"bias_far_byte", "far_byte", "few_byte", "few_far_byte"})
"""Rates of what one core reads, as fast as the memory lets it."""

FAR = frozenset({"bias_far_byte", "few_far_byte"})
"""Those of them that all cores together read from one memory."""

ONCE = frozenset({"call", "select_call"})
"""Rates of what one core does once a call, whatever the others do."""

Rates = Mapping[str, float]

Amounts = Iterator[tuple[str, str, float]]
"""Work in units: the part of the cost, the rate that it goes by, and how many units."""


@dataclass(frozen=True)
class Cores:
    """Some cores of one kind that work together.

    `contention` is a factor on the time of each where several work, `fork` the seconds of handing
    an attention to them, `choice_fork` those of an operator that chooses; `matrix_mac` the seconds
    of a multiply-add of a matrix product beside the attentions, `watts` what one core draws.
    Threads take `run` multiply-adds at once, or one panel at least. A call takes
    `far_byte` seconds at least for each byte from memory, however many cores read.
    """

    rates: Rates
    count: int
    fork: float
    choice_fork: float
    contention: float
    matrix_mac: float
    watts: float
    far_byte: float = 0.0
    run: int = RUN


def attention(cores: Cores, work: Workload) -> Cost:
    """What one call takes, with choosing its blocks."""
    shared, alone = _divided(cores, amounts(work))
    parts = dict(shared)
    if cores.count > 1:
        if not is_few(work):
            busy = math.fsum(shared.values())
            parts["imbalance"] = (
                makespan(_runs(cores, work, busy * cores.count), cores.count) - busy
            )
        alone["overhead"] += cores.fork
    for part, seconds in alone.items():
        parts[part] = parts.get(part, 0.0) + seconds
    read = cores.far_byte * math.fsum(bytes_ for _, rate, bytes_ in amounts(work) if rate in FAR)
    parts["memory"] = parts.get("memory", 0.0) + max(0.0, read - math.fsum(parts.values()))
    parts["selector"] = choice(cores, work.selector)
    return cost_of(parts, math.fsum(parts.values()) * cores.count * cores.watts)


def choice(cores: Cores, work: SelectorWork) -> float:
    """Seconds of choosing the blocks of one call."""
    shared, alone = _divided(cores, choice_amounts(work))
    forks = cores.choice_fork * work.calls if cores.count > 1 else 0.0
    return math.fsum((*shared.values(), *alone.values(), forks))


def _divided(cores: Cores, units: Amounts) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by part: of what the cores share, and of what one of them does alone."""
    factor = (cores.contention if cores.count > 1 else 1.0) / cores.count
    shared: dict[str, float] = defaultdict(float)
    alone: dict[str, float] = defaultdict(float)
    for part, rate, amount in units:
        if rate in ONCE:
            alone[part] += cores.rates[rate] * amount
        else:
            shared[part] += cores.rates[rate] * amount * factor
    return shared, alone


def matrices(cores: Cores, work: MatrixWork) -> Cost:
    """What matrix products take that a model does beside its attentions."""
    seconds = work.macs * cores.matrix_mac / cores.count
    return cost_of({"qk": seconds}, seconds * cores.count * cores.watts)


def amounts(w: Workload) -> Amounts:
    """What one call consists of beside choosing its blocks."""
    yield "overhead", "call", 1.0
    yield from _few(w) if is_few(w) else _panels(w)


def choice_amounts(s: SelectorWork) -> Amounts:
    """What choosing the blocks of one call consists of."""
    yield "selector", "select_mac", s.macs
    yield "selector", "select_score", s.scores
    yield "selector", "select_choice", s.choices
    yield "selector", "select_call", s.calls
    yield "selector", "select_element", s.elements


def is_few(w: Workload) -> bool:
    """Whether rows are so few that they are not put into lanes; a residual always is in lanes."""
    return w.residual == "none" and rows_together(w) <= FEW


def rows_together(w: Workload) -> int:
    """Rows that one panel holds: queries of one block, of all heads that share keys."""
    rows = min(w.q_length, w.q_block)
    return rows * (w.heads // w.kv_heads) if rows <= FEW else rows


def _panels(w: Workload) -> Amounts:
    lanes, dims = _lanes(w), w.head_dim + w.value_dim
    pairs, row = w.kept_keys * lanes, dims * ITEM_BYTES[w.dtype]
    yield "qk", "mac", pairs * w.head_dim
    yield "pv", "mac", pairs * w.value_dim
    yield "softmax", "score", pairs
    yield "overhead", "panel", w.blocks
    yield "overhead", "element", w.blocks * lanes * dims
    yield "overhead", "block", w.kept_keys / w.k_block
    yield "memory", "far_byte", w.kept_keys * row * max(0.0, 1 - NEAR / (w.k_length * row))
    if w.dtype != "float32":
        yield "overhead", "convert", w.kept_keys * dims
    if w.bias_heads:
        yield "softmax", "bias", pairs
        if w.kept:
            yield "softmax", "bias_row", pairs / w.k_block
        yield "memory", "bias_far_byte", w.batch * w.table_reads * max(0, w.bias_bytes - CACHED)
    if w.mask_heads:
        yield "softmax", "mask", pairs
    if w.residual != "none":
        yield from _residual(w, lanes, dims)


def _residual(w: Workload, lanes: float, dims: int) -> Amounts:
    """Means of groups are made of all keys in every call, and each left-out group is a key more."""
    yield "residual", "mac", w.groups * lanes * dims
    yield "residual", "score", w.groups * lanes
    yield "residual", "group", w.groups
    yield "residual", "group_panel", w.blocks
    yield "residual", "mean", w.batch * w.kv_heads * w.k_length * dims
    if w.bias_heads or w.mask_heads:
        yield "residual", "split", w.blocks * w.k_length
    if w.bias_heads:
        yield "residual", "bias_group", w.groups * w.residual_block * lanes


def _few(w: Workload) -> Amounts:
    """Read every kept key and value once for all heads that share them."""
    dims = w.head_dim + w.value_dim
    keys = w.batch * w.kv_heads * w.k_length * w.density
    yield "qk", "few_mac", w.scores * w.head_dim
    yield "pv", "few_mac", w.scores * w.value_dim
    read = keys * dims * ITEM_BYTES[w.dtype]
    yield "memory", "few_byte", read
    yield "memory", "few_far_byte", max(0.0, read - CACHED)
    yield "overhead", "few_row", w.batch * w.heads * w.q_length
    if w.bias_heads:
        yield "softmax", "few_bias", w.batch * w.bias_heads * w.q_length * w.k_length


def _lanes(w: Workload) -> float:
    """Lanes that a query block fills on average; the last of a head may be short."""
    whole, rest = divmod(w.q_length, w.q_block)
    lanes = whole * -(-w.q_block // LANES) + -(-rest // LANES)
    return lanes * LANES / -(-w.q_length // w.q_block)


def _runs(cores: Cores, w: Workload, total: float) -> Iterator[tuple[float, int]]:
    """Cut the call's `total` seconds into what threads take at once."""
    dims, rows = w.head_dim + w.value_dim, min(w.q_block, w.q_length)
    weights = [(keys + LANES, blocks) for keys, blocks in w.histogram]
    share = total / sum(weight * blocks for weight, blocks in weights)
    for weight, blocks in weights:
        together = min(max(1, round(cores.run / (weight * rows * dims))), blocks)
        whole, rest = divmod(blocks, together)
        yield share * weight * together, whole
        if rest:
            yield share * weight * rest, 1
