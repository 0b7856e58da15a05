"""Evaluates the terms of masks at many lengths and says which of them are bands at every length."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from sparsify.layout import Step, Unsqueeze
from sparsify.masks.evaluate import Evaluator, Shapes
from sparsify.masks.forms import Band, Extent, agreed, band_of
from sparsify.masks.lengths import (
    BASE,
    PROBE,
    Lengths,
    Roles,
    assignments,
    dims_of,
    further,
    long_enough,
    most_general,
    slots_of,
)
from sparsify.masks.source import Array, Source, constant_of
from sparsify.masks.terms import Splitter, Term
from sparsify.site import VANISHES, Mask, Operand, Site

_MOST_ROLES = 9
"""More choices of roles than any graph leaves open that can be evaluated in time."""

_FEW = 64
"""Stored tensors of more elements are no numbers, but masks or tables."""


@dataclass(frozen=True)
class Known:
    """What evaluations say of a term.

    `sizes` are its dimensions, None where they vary. `top` and `bottom` are the bands that it is
    with queries aligned to the first keys, or to the last; `extents` the sizes it was seen at.
    `fill` is the highest number that masked scores get from it.
    """

    sizes: tuple[int | None, ...] | None = None
    top: Band | None = None
    bottom: Band | None = None
    extents: frozenset[tuple[int, int]] = frozenset()
    fill: float = float("-inf")
    element_type: int | None = None

    def band(self, site: Site, bottom_right: bool) -> Band | None:
        """The band that it is among a site's scores, under one of the alignments."""
        band = self.bottom if bottom_right else self.top
        one_row = all(queries == 1 for queries, _ in self.extents)
        if band is None or (not band.open and one_row and site.q_length != 1):
            return None
        return band if band.expressible else None


@dataclass
class Seen:
    """What one term showed at the sizes so far; `failed` where a size could not run."""

    term: Term
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    top: list[tuple[Extent, Band | None]] = field(default_factory=list)
    bottom: list[tuple[Extent, Band | None]] = field(default_factory=list)
    fill: float = float("-inf")
    element_type: int | None = None
    positional: bool = True
    failed: bool = False

    def note(self, values: Array) -> None:
        """Note the values at one size; those of an arithmetic term end its evaluation."""
        for step in self.term.lift:
            assert isinstance(step, Unsqueeze)
            values = np.expand_dims(values, step.axes)
        values = values.reshape((1,) * (2 - values.ndim) + values.shape)
        if not values.size:
            return
        grids = values.reshape(-1, *values.shape[-2:])
        kept = kept_by(self.term, grids[0])
        if kept is None or any(not np.array_equal(grids[0], grid) for grid in grids[1:]):
            self.positional = False
            return
        if self.term.kind == "add" and not kept.all():
            masked = grids[0][~kept].astype(np.float64) * self.term.factor
            self.fill = max(self.fill, float(masked.max()))
        queries, keys = kept.shape
        top, bottom = Extent(queries, keys), Extent(queries, keys, keys - queries)
        self.top.append((top, band_of(kept, 0)))
        same = top == bottom
        self.bottom.append((bottom, self.top[-1][1] if same else band_of(kept, keys - queries)))
        self.positional = (self.top[-1][1] or self.bottom[-1][1]) is not None

    def conclusion(self, needed: int) -> Known:
        """What can be said; `needed` is a length beyond which nothing new can show."""
        known = Known(_common(self.shapes), element_type=self.element_type)
        extents = frozenset((e.queries, e.keys) for e, _ in self.top)
        far = max((max(extent) for extent in extents), default=0) >= needed
        varied = len(extents) >= 3 and far
        # a graph that fixes its lengths has one extent
        if not self.positional or not (varied or (len(extents) == 1 and (far or not self.failed))):
            return known
        fill = self.fill if self.term.kind == "add" else self.term.fill
        top, bottom = agreed(self.top), agreed(self.bottom)
        return replace(known, top=top, bottom=bottom, extents=extents, fill=fill)


@dataclass(frozen=True)
class Reading:
    """Evaluates the terms of masks in one graph, each once."""

    source: Source
    evaluator: Evaluator
    slots: dict[str, list[str]]
    _roles: dict[frozenset[str], tuple[Roles, ...]] = field(default_factory=dict)
    _known: dict[Term, Known] = field(default_factory=dict)

    def terms(self, mask: Mask, site: Site) -> list[Term]:
        """The terms of a mask, taken apart with the sizes that it has at the probing lengths."""
        shapes = self.shapes([mask.operand.tensor], self.roles(site)[0], PROBE)
        return Splitter(self.source, shapes.dims.get, shapes.types.get).terms(mask)

    def known(self, terms: list[Term], site: Site) -> dict[Term, Known]:
        """What is known of each term."""
        new = [term for term in dict.fromkeys(terms) if term not in self._known]
        if new:
            self._known.update(self._evaluated(new, self.roles(site)))
        return {term: self._known[term] for term in terms}

    def roles(self, site: Site) -> tuple[Roles, ...]:
        """The choices of roles under which the site's graph fits together."""
        names = [mask.operand.tensor for mask in site.masks]
        key = self._slots_above(names)
        if key not in self._roles:
            self._roles[key] = tuple(self._fitting(site, names))
        return self._roles[key]

    def shapes(
        self, names: list[str], roles: Roles, lengths: Lengths, strict: bool = False
    ) -> Shapes:
        """The shapes above some tensors at one choice of sizes."""
        dims = dims_of(self.source.inputs, self.slots, roles, lengths)
        return self.evaluator.shapes(names, dims, strict)

    def _slots_above(self, names: list[str]) -> frozenset[str]:
        return frozenset(slot for name in self._inputs_above(names) for slot in self.slots[name])

    def _inputs_above(self, names: list[str]) -> list[str]:
        read = set(names) | self.source.read(self.source.upstream(names))
        return [name for name in self.source.inputs if name in read]

    def _fitting(self, site: Site, names: list[str]) -> list[Roles]:
        """Choices under which no two sizes around the site contradict each other."""
        ends = [operand.tensor for operand in (site.query, site.key)]
        slots = {name: self.slots[name] for name in self._inputs_above([*names, *ends])}
        of_masks = self._slots_above(names)
        for strict in (True, False):  # some graphs have errors that do not matter
            found = []
            for roles in assignments(slots):
                shapes = self.shapes([*names, *ends], roles, PROBE, strict)
                if shapes.types and not _contradicts(site, shapes):
                    found.append({slot: roles[slot] for slot in roles if slot in of_masks})
            if found:
                break
        general = most_general(found)
        return general if len(general) <= _MOST_ROLES else []

    def _evaluated(self, terms: list[Term], roles: tuple[Roles, ...]) -> dict[Term, Known]:
        seen = [Seen(term) for term in terms]
        for lengths in BASE:
            for choice in roles:
                self._look(seen, choice, lengths)
        found = {}
        for notes in seen:
            numbers, edges = self._numbers(notes, roles)
            for lengths in further(numbers, edges):
                for choice in roles:
                    self._look([notes], choice, lengths)
            needed = [*map(long_enough, numbers), *edges]
            found[notes.term] = notes.conclusion(max(needed, default=0))
        return found

    def _look(self, seen: list[Seen], roles: Roles, lengths: Lengths) -> None:
        """Evaluate terms at one choice of sizes and note what they are there."""
        shapes = self.shapes(sorted({notes.term.tensor for notes in seen}), roles, lengths)
        for notes in seen:
            name = notes.term.tensor
            if name in shapes.dims:
                notes.shapes.append(lifted(shapes.dims[name], notes.term.lift))
                notes.element_type = shapes.types[name]
            if not notes.positional:
                continue
            cut = self.evaluator.cut([name], shapes)
            if cut is None:
                notes.positional = False
                continue
            values = self.evaluator.run([name], cut, shapes, {})
            if values is None:  # no input of these sizes can run
                notes.failed = True
            else:
                notes.note(values[name])

    def _numbers(self, notes: Seen, roles: tuple[Roles, ...]) -> tuple[set[int], set[int]]:
        """Numbers in a term's graph that may be windows, and sizes of masks stored in it."""
        numbers, edges = set[int](), set[int]()
        for choice in roles if notes.positional else ():
            for value in self._small_values(notes.term.tensor, choice):
                if value.size > _FEW:
                    edges.add(max(value.shape))
                elif value.dtype.kind in "iuf":
                    whole = np.abs(value.astype(np.float64))
                    numbers |= {int(n) for n in whole[np.isfinite(whole)] if n < 1 << 62}
        seen = max((max(e.queries, e.keys) for e, _ in notes.top), default=0)
        return {n for n in numbers if 2 * n + 3 > seen}, edges

    def _small_values(self, name: str, roles: Roles) -> Iterator[Array]:
        """What is stored in the file for a tensor, and the small tensors computed from it."""
        shapes = self.shapes([name], roles, PROBE)
        cut = self.evaluator.cut([name], shapes)
        if cut is None:
            return
        yield from (value for made, value in cut.fixed.items() if made in self.source.stored)
        for node in cut.nodes:
            tensor = constant_of(node) if node.op_type == "Constant" else None
            value = None if tensor is None else self.source.array(tensor)
            if value is not None:
                yield value
        # a window may be a product: 8 blocks of 64
        made = [made for node in cut.nodes for made in node.output if shapes.count(made) <= _FEW]
        computed = self.evaluator.run(made, cut, shapes, {}) if made else None
        yield from (computed or {}).values()


def reading_of(source: Source) -> Reading:
    """A reading of what one graph can see."""
    return Reading(source, Evaluator(source), slots_of(source.inputs))


def kept_by(term: Term, values: Array) -> Array | None:
    """Where a term keeps scores; None where it is arithmetic on them."""
    if term.kind in ("keep", "drop"):
        return np.asarray((values != 0) == (term.kind == "keep"))
    with np.errstate(all="ignore"):
        added = values if term.factor == 1 else values.astype(np.float64) * term.factor
    kept = values == 0
    return np.asarray(kept) if bool((kept | (added <= VANISHES)).all()) else None


def lifted(shape: tuple[int, ...], steps: tuple[Step, ...]) -> tuple[int, ...]:
    """A shape after steps that insert dimensions."""
    values = np.broadcast_to(np.zeros((), dtype=np.bool_), shape)
    for step in steps:
        assert isinstance(step, Unsqueeze)
        values = np.expand_dims(values, step.axes)
    return values.shape


def _common(shapes: list[tuple[int, ...]]) -> tuple[int | None, ...] | None:
    """Dimensions that are the same in all shapes; None where they vary."""
    if len({len(shape) for shape in shapes}) != 1:
        return None
    axes = zip(*shapes, strict=True)
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in axes)


def _contradicts(site: Site, shapes: Shapes) -> bool:
    """Whether a mask does not fit the scores, as far as the sizes are known."""
    wanted = {-2: _length(site.query, shapes), -1: _length(site.key, shapes)}
    for mask in site.masks:
        sizes = shapes.dims.get(mask.operand.tensor)
        if sizes is None or not _aligned(mask.operand):
            continue
        for axis, length in wanted.items():
            if length is not None and len(sizes) >= -axis and sizes[axis] not in (1, length):
                return True
    return False


def _aligned(operand: Operand) -> bool:
    return all(isinstance(step, Unsqueeze) and step.axes[0] == 0 for step in operand.steps)


def _length(operand: Operand, shapes: Shapes) -> int | None:
    """The length of an operand `[batch, heads, length, dim]`, where a step keeps it."""
    place: int | None = 2
    for step in reversed(operand.steps):
        place = None if place is None else step.source(place)
    sizes = shapes.dims.get(operand.tensor)
    return None if place is None or sizes is None or place >= len(sizes) else sizes[place]
