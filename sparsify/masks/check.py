"""Compares a mask of the graph with what it was taken apart into, on random terms."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from sparsify.layout import Unsqueeze
from sparsify.masks.evaluate import Shapes
from sparsify.masks.forms import Band
from sparsify.masks.lengths import PROBE, Lengths
from sparsify.masks.reading import Reading
from sparsify.masks.source import Array
from sparsify.masks.terms import Term
from sparsify.site import ABSORBS, VANISHES, Mask, Site

_AT = (PROBE, Lengths(2, 6, 0), Lengths(2, 1, 9), Lengths(2, 35, 4))


def agrees(
    reading: Reading, site: Site, mask: Mask, rest: list[Term], band: Band, bottom_right: bool
) -> bool:
    """Whether a mask keeps what its band and the rest of its terms keep, at several lengths."""
    rng = np.random.default_rng(0)
    results = [
        _agrees_at(reading, shapes, mask, rest, band, bottom_right, rng)
        for roles in reading.roles(site)
        for lengths in _AT
        for shapes in [reading.shapes([mask.operand.tensor], roles, lengths)]
    ]
    compared = [result for result in results if result is not None]
    return bool(compared) and all(compared)


def one_fill(reading: Reading, site: Site, mask: Mask, rest: list[Term]) -> bool:
    """Whether everything that a mask masks becomes the same number, in which a score is lost."""
    if mask.kind != "add":
        return mask.fill <= ABSORBS and mask.fill > float("-inf")
    rng = np.random.default_rng(0)
    fills: set[float] = set()
    for roles in reading.roles(site):
        for lengths in _AT:
            shapes = reading.shapes([mask.operand.tensor], roles, lengths)
            if any(term.tensor not in shapes.dims for term in rest):
                return False
            drawn = {term.tensor: _drawn(term, shapes, rng) for term in rest}
            cut = reading.evaluator.cut([mask.operand.tensor], shapes, drawn)
            found = cut and reading.evaluator.run([mask.operand.tensor], cut, shapes, drawn)
            if found:
                with np.errstate(all="ignore"):
                    sums = found[mask.operand.tensor].astype(np.float64) * mask.factor
                fills |= set(np.unique(sums[sums <= VANISHES]).tolist())
    return len(fills) == 1 and float("-inf") < min(fills) <= ABSORBS


def _agrees_at(
    reading: Reading,
    shapes: Shapes,
    mask: Mask,
    rest: list[Term],
    band: Band,
    bottom_right: bool,
    rng: np.random.Generator,
) -> bool | None:
    """The comparison at one choice of sizes; None where the graph cannot run at it."""
    whole = Term(mask.kind, mask.operand.tensor, mask.factor, mask.fill)
    if any(term.tensor not in shapes.dims for term in rest):
        return False
    drawn = {term.tensor: _drawn(term, shapes, rng) for term in rest}
    cut = reading.evaluator.cut([whole.tensor], shapes, drawn)
    if cut is None:
        return False
    found = reading.evaluator.run([whole.tensor], cut, shapes, drawn)
    if found is None:
        return None
    values = found[whole.tensor]
    kept, added = _meaning(rest, drawn, band, bottom_right, values.shape)
    if whole.kind != "add":
        return _same((values != 0) == (whole.kind == "keep"), kept)
    with np.errstate(all="ignore"):
        sums = values.astype(np.float64) * whole.factor
    if not _same(sums > VANISHES, kept):
        return False
    kept, sums, added = np.broadcast_arrays(kept, sums, added)
    return bool(np.allclose(sums[kept], added[kept], rtol=1e-2, atol=1e-2))


def _drawn(term: Term, shapes: Shapes, rng: np.random.Generator) -> Array:
    kind, size = shapes.types[term.tensor], shapes.dims[term.tensor]
    if term.kind == "add":
        values: Any = rng.standard_normal(size)
    else:
        values = rng.random(size) < 0.6
    dtype = np.bool_ if kind == TensorProto.BOOL else helper.tensor_dtype_to_np_dtype(kind)
    return np.asarray(values).astype(dtype)


def _meaning(
    rest: list[Term],
    drawn: Mapping[str, Array],
    band: Band,
    bottom_right: bool,
    shape: tuple[int, ...],
) -> tuple[Array, Array]:
    """Which scores the parts keep, and what they add to them."""
    kept, added = np.ones((1, 1), dtype=np.bool_), np.zeros((1, 1))
    if not band.open:
        queries, keys = shape[-2:]
        positions = np.arange(queries) + (keys - queries if bottom_right else 0)
        distance = np.arange(keys)[None, :] - positions[:, None]
        kept = np.ones(distance.shape, dtype=np.bool_)
        kept &= distance >= (band.low if band.low is not None else -keys - queries)
        kept &= distance <= (band.high if band.high is not None else keys + queries)
    for term in rest:
        values = drawn[term.tensor]
        for step in term.lift:
            assert isinstance(step, Unsqueeze)
            values = np.expand_dims(values, step.axes)
        if term.kind == "add":
            added = added + values.astype(np.float64) * term.factor
        else:
            kept = kept & ((values != 0) == (term.kind == "keep"))
    return kept, added


def _same(one: Array, other: Array) -> bool:
    one, other = np.broadcast_arrays(one, other)
    return np.array_equal(one, other)
