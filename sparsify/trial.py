"""Random inputs for the proof of one site: shapes that fit it, masks that really mask."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from sparsify.layout import batch_multiple, is_one, undo_steps
from sparsify.site import Given, Mask, Operand, Site

Array = npt.NDArray[Any]

_SOON = 1 << 22
"""Score elements up to which a trial at the graph's own sizes comes first."""


@dataclass(frozen=True)
class Sizes:
    """The dimensions of one trial, under the names that `Given.sizes` may use."""

    batch: int
    q_heads: int
    kv_heads: int
    q_length: int
    k_length: int
    head_dim: int
    value_dim: int
    past_length: int = 5

    @property
    def scores(self) -> int:
        """Elements of the score matrices."""
        return self.batch * self.q_heads * self.q_length * self.k_length

    def value(self, text: int | str) -> int:
        """A number, a size by its name, products of them, and the difference of two products."""
        if isinstance(text, int):
            return text
        whole, *less = (self._product(part) for part in text.split("-"))
        return whole - sum(less)

    def _product(self, text: str) -> int:
        factors = text.split("*")
        return prod(int(f) if f.isdigit() else int(getattr(self, f)) for f in factors)


def boundary(site: Site) -> dict[str, int]:
    """The tensors that a trial draws, with their element types."""
    types = {operand.tensor: site.element_type for operand in (site.query, site.key, site.value)}
    if site.sinks is not None:
        types[site.sinks.tensor] = site.element_type
    types |= {mask.operand.tensor: mask.element_type for mask in site.masks}
    made = {name for node in site.before for name in node.output}
    types = {name: kind for name, kind in types.items() if name not in made}
    return types | {given.tensor: given.element_type for given in site.given}


def contradiction(site: Site) -> str | None:
    """What in the sizes of masks and operands cannot be true at once."""
    for axis, word, known in ((-2, "queries", site.q_length), (-1, "keys", site.k_length)):
        lengths = _mask_lengths(site, axis) | ({known} if known is not None else set())
        if len(lengths) > 1:
            return f"masks and operands disagree on the number of {word}: {sorted(lengths)}"
    return None


def trial_sizes(site: Site) -> Iterable[Sizes]:
    """Small sizes first, lengths apart so that a mix-up shows; then the sizes the graph fixes."""
    heads = site.q_heads or site.group * (site.kv_heads or 2)
    kv_heads = site.kv_heads or max(1, heads // site.group)
    heads = 1 if is_one(site.query.steps, 1) else heads
    kv_heads = 1 if is_one(site.key.steps, 1) else kv_heads
    dim = site.head_dim or site.value_dim or 8
    q_fixed, k_fixed = (next(iter(_mask_lengths(site, axis)), None) for axis in (-2, -1))
    unit = lcm(*(batch_multiple(operand.steps) for operand in (site.query, site.key, site.value)))
    unit = lcm(unit, *(mask.sizes[0] or 1 for mask in site.masks if mask.tiled))
    unit = lcm(unit, *(batch_multiple(mask.operand.steps) for mask in site.masks))
    unit = lcm(unit, site.batch_multiple)
    past, cached = _past_length(site), 0 if site.k_length else _fixed_length(site)
    batch = site.batch or 2 * unit
    fixed = (batch, site.q_length or 24, site.k_length or site.q_length or 24)
    small = ((2 * unit, 20, 24), (2 * unit, 24, 24), (unit, 24, 24))
    # what the graph fixes decides, unless it is so large that small sizes should be tried before
    first = site.q_length is not None and heads * prod(fixed) <= _SOON
    last = (batch, site.q_length or 1, site.k_length or 24)
    sizes = (fixed, *small, last) if first else (*small, fixed, last)
    for batch, q_length, k_length in sizes:
        yield Sizes(
            1 if is_one(site.query.steps, 0) else batch,
            heads,
            min(heads, kv_heads),
            q_fixed or q_length,
            k_fixed or (k_length + cached if past is None else (q_fixed or q_length) + past),
            dim,
            site.value_dim or dim,
        )


def _past_length(site: Site) -> int | None:
    """The length of a cache that precedes as many new keys as there are queries, if one does."""
    names = {size for given in site.given for size in given.sizes}
    tied = "past_length" in names and not any("-past_length" in str(name) for name in names)
    return Sizes.past_length if tied else None


def _fixed_length(site: Site) -> int:
    """The keys that are fixed in number beside others that are not: a cache, or the new ones."""
    names = [str(size) for given in site.given for size in given.sizes]
    lengths = [name.removeprefix("k_length-") for name in names if name.startswith("k_length-")]
    return max((int(length) for length in lengths if length.isdigit()), default=0)


def feeds(site: Site, sizes: Sizes, rng: np.random.Generator) -> Mapping[str, Array]:
    """An array for each tensor of `boundary`."""
    s = sizes
    shapes = {
        site.query: (s.batch, s.q_heads, s.q_length, s.head_dim),
        site.key: (s.batch, s.kv_heads, s.k_length, s.head_dim),
        site.value: (s.batch, s.kv_heads, s.k_length, s.value_dim),
    }
    found: dict[str, Array] = {}
    for operand, shape in shapes.items():
        found[operand.tensor] = _drawn(operand, shape, site.element_type, rng)
    if site.sinks is not None:
        found[site.sinks.tensor] = _drawn(site.sinks, (s.q_heads,), site.element_type, rng)
    for mask in site.masks:
        found[mask.operand.tensor] = _mask_values(mask, sizes, rng)
    for given in site.given:
        found[given.tensor] = _given(given, sizes, rng)
    wanted = boundary(site)
    return {name: values for name, values in found.items() if name in wanted}


def _drawn(
    operand: Operand, shape: tuple[int, ...], element_type: int, rng: np.random.Generator
) -> Array:
    values = rng.standard_normal(shape).astype(np.float32)
    return _as_type(undo_steps(values, operand.steps), element_type)


def _given(given: Given, sizes: Sizes, rng: np.random.Generator) -> Array:
    shape = tuple(sizes.value(size) for size in given.sizes)
    if isinstance(given.values, tuple):
        values: Array = np.array([sizes.value(size) for size in given.values])
    elif given.values == "normal":
        values = rng.standard_normal(shape).astype(np.float32)
    elif given.values == "mask":
        values = (rng.random(shape) < 0.7).astype(np.float32)
        values[..., 0] = 1
    elif given.values == "bias":
        masked = _masked(shape, rng)
        values = np.where(masked, -np.inf, rng.standard_normal(shape)).astype(np.float32)
    elif given.values in ("lengths", "last"):
        values = rng.integers(min(sizes.q_length, sizes.k_length), sizes.k_length + 1, shape)
        values -= given.values == "last"
    elif given.values == "weight":
        values = rng.standard_normal(shape).astype(np.float32) / np.sqrt(shape[0])
    elif given.values == "positions":
        values = np.broadcast_to(np.arange(shape[-1]), shape)
    else:
        values = np.full(shape, sizes.value(given.values))
    return _as_type(values, given.element_type)


def _mask_lengths(site: Site, axis: int) -> set[int]:
    """The lengths along one axis of the scores (-2 queries, -1 keys) that masks fix."""
    sizes = [mask.sizes[axis] for mask in site.masks if len(mask.sizes) >= -axis]
    return {size for size in sizes if size is not None and size != 1}


def _masked(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Where to mask: some places, but never the first key, so that no row is left without one."""
    masked = np.asarray(rng.random(tuple(shape)) < 0.3)
    if masked.ndim:
        masked[..., 0] = False
    return masked


def _mask_values(mask: Mask, sizes: Sizes, rng: np.random.Generator) -> Array:
    """A random mask of the rank the graph has; no row of scores is left without a key."""
    full = (sizes.batch, sizes.q_heads, sizes.q_length, sizes.k_length)
    rank = len(mask.sizes)
    shape = list(full[4 - rank :])
    for axis, size in enumerate(mask.sizes):
        if size == 1 or (size is None and rank == 4 and axis == 1):
            shape[axis] = 1
    if mask.tiled and mask.sizes[0]:
        shape[0] = mask.sizes[0]
    if mask.multiplies:
        factors = rng.uniform(0.5, 1.5, shape)
        return _as_type(undo_steps(factors, mask.operand.steps), mask.element_type)
    masked = _masked(shape, rng)
    if mask.kind != "add":
        kept = masked if mask.kind == "drop" else ~masked
        return _as_type(undo_steps(kept, mask.operand.steps), mask.element_type)
    away = -np.inf if mask.factor > 0 else np.inf
    values = np.where(masked, away, rng.standard_normal(shape)).astype(np.float32)
    return _as_type(undo_steps(values, mask.operand.steps), mask.element_type)


def _as_type(values: Array, element_type: int) -> Array:
    if element_type == TensorProto.BOOL:
        return values.astype(np.bool_)
    return values.astype(helper.tensor_dtype_to_np_dtype(element_type))
