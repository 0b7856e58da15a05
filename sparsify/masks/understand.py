"""Turns what is known of a site's masks into its attributes, and leaves the rest as masks."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

from onnx import TensorProto

from sparsify.layout import Unsqueeze
from sparsify.masks.check import agrees, one_fill
from sparsify.masks.forms import Band, Extent
from sparsify.masks.reading import Known, Reading, reading_of
from sparsify.masks.source import source_of
from sparsify.masks.terms import Term
from sparsify.model import Model
from sparsify.places import Place
from sparsify.site import Mask, Operand, Site

_EMPTY = "empty_rows:"
_MEAN = f"{_EMPTY} original mean(V) -> 0"
_BIASED = f"{_EMPTY} mean(V) as in the original, unless the bias masks keys too"
_NAN = f"{_EMPTY} original NaN -> 0"

_NEVER = float("-inf")

_OPEN = Band()


@dataclass(frozen=True)
class Part:
    """One mask of a site: the terms that became a band, and those that stay."""

    mask: Mask
    band: Band = _OPEN
    proved: tuple[Term, ...] = ()
    rest: tuple[Term, ...] = ()
    changed: bool = False


@dataclass(frozen=True)
class Masks:
    """Understands the masks of sites in one graph; what is learned of a mask serves all sites."""

    model: Model
    place: Place
    _agreed: dict[object, bool] = field(default_factory=dict)

    @cached_property
    def _reading(self) -> Reading | None:
        source = source_of(self.model, self.place)
        return None if source is None else reading_of(source)

    def understand(self, site: Site) -> Site:
        """The site with everything proved of its masks as attributes.

        A site comes back as it is where nothing can be proved, or where a check fails.
        """
        if not site.masks or site.query_offset:
            return site
        reading = self._reading
        if reading is None or not reading.roles(site):
            return site
        split = {mask: reading.terms(mask, site) for mask in site.masks if _readable(mask)}
        terms = [term for found in split.values() for term in found]
        known = reading.known(terms, site)
        bottom_right = _alignment(site, terms, known)
        parts = [_part(site, mask, split.get(mask), known, bottom_right) for mask in site.masks]
        if not any(part.changed for part in parts):
            return site
        for part in parts:
            if part.changed and not self._checked(reading, site, part, bottom_right):
                return site
        found = _rewritten(site, parts, known, bottom_right)
        return self._averaged(reading, site, found, parts)

    def _averaged(self, reading: Reading, site: Site, found: Site, parts: list[Part]) -> Site:
        """The site with rows without keys as they were, where positions and padding tell them."""
        changed = [part for part in parts if part.changed]
        if _MEAN not in found.notes or not _tells_empty_rows(found) or len(changed) != 1:
            return found
        part = changed[0]
        key = ("one fill", part)
        if key not in self._agreed:
            self._agreed[key] = one_fill(reading, site, part.mask, list(part.rest))
        if not self._agreed[key]:
            return found
        biased = any(mask.kind == "add" for mask in found.masks)
        notes = tuple(note for note in found.notes if note != _MEAN)
        notes = (*notes, _BIASED) if biased else notes
        return replace(found, averaged=True, notes=notes)

    def _checked(self, reading: Reading, site: Site, part: Part, bottom_right: bool) -> bool:
        key = (part, bottom_right)
        if key not in self._agreed:
            self._agreed[key] = agrees(
                reading, site, part.mask, list(part.rest), part.band, bottom_right
            )
        return self._agreed[key]


def _tells_empty_rows(site: Site) -> bool:
    """Whether one padding mask and a band that ends at the query say which rows have no key."""
    forbidding = [mask for mask in site.masks if mask.kind != "add"]
    if len(forbidding) != 1 or site.element_type != TensorProto.FLOAT:
        return False
    (mask,) = forbidding
    padding = mask.forbids and len(mask.sizes) == 4 and mask.sizes[1:3] == (1, 1)
    return padding and not mask.tiled and (site.causal or site.right_window < 0)


def _readable(mask: Mask) -> bool:
    """Whether a mask is aligned with the scores from the right, as its terms then are."""
    steps = mask.operand.steps
    leading = all(isinstance(s, Unsqueeze) and s.axes == tuple(range(len(s.axes))) for s in steps)
    return not mask.multiplies and leading


def _alignment(site: Site, terms: list[Term], known: dict[Term, Known]) -> bool:
    """Whether queries are aligned with the last keys: as the site says, or as most bands do."""
    if site.causal or site.left_window >= 0 or site.right_window >= 0:
        return site.bottom_right

    def bands(bottom_right: bool) -> int:
        found = (known[term].band(site, bottom_right) for term in terms)
        return sum(band is not None and not band.open for band in found)

    return bands(True) > bands(False)


def _part(
    site: Site, mask: Mask, terms: list[Term] | None, known: dict[Term, Known], bottom_right: bool
) -> Part:
    if terms is None:
        return Part(mask)
    bands = {term: known[term].band(site, bottom_right) for term in terms}
    proved = tuple(term for term, band in bands.items() if band is not None)
    rest = tuple(term for term, band in bands.items() if band is None)
    if any(known[term].sizes is None or known[term].element_type is None for term in rest):
        return Part(mask)
    if mask.tiled and rest:
        return Part(mask)
    if any(_by_query(term, known[term]) for term in rest):
        return Part(mask)
    found = reduce(Band.meet, (band for band in bands.values() if band is not None), _OPEN)
    full = any(_full(known[term].sizes or ()) for term in rest)
    smaller = not full and (bool(proved) or _full(mask.sizes))
    return Part(mask, found, proved, rest, smaller or not found.open)


def _by_query(term: Term, known: Known) -> bool:
    """Whether a term takes all keys from a query, for which the original then has their mean."""
    sizes = known.sizes or ()
    return term.kind != "add" and term.fill > _NEVER and len(sizes) > 1 and sizes[-1] == 1


def _full(sizes: tuple[int | None, ...]) -> bool:
    """Whether a mask may have a size for each query and each key."""
    return len(sizes) >= 2 and 1 not in sizes[-2:]


def _rewritten(site: Site, parts: list[Part], known: dict[Term, Known], bottom_right: bool) -> Site:
    """The site with the bands of its parts as attributes; unchanged where rows would differ."""
    changed = [part for part in parts if part.changed]
    band = reduce(Band.meet, (part.band for part in changed), _own_band(site))
    proved = [t for p in changed for t in p.proved if not _open(known[t], site, bottom_right)]
    finite = any(known[term].fill > _NEVER for term in proved)
    emptied = any(_empties(known[term], band, bottom_right) for term in proved)
    if emptied and finite:
        return site
    masks = [pair for part in parts for pair in _masks(part, known, finite)]
    kept = tuple(note for note in site.notes if not note.startswith(_EMPTY))
    notes = (*kept, *_empty_rows(site, masks, emptied, finite))
    shifted = bottom_right and not band.open
    return replace(
        site,
        masks=tuple(mask for mask, _ in masks),
        causal=band.high == 0,
        left_window=-1 if band.low is None else -band.low,
        right_window=-1 if band.high in (None, 0) else band.high or -1,
        bottom_right=site.bottom_right or shifted,
        notes=notes,
    )


def _own_band(site: Site) -> Band:
    high = 0 if site.causal else site.right_window if site.right_window >= 0 else None
    return Band(-site.left_window if site.left_window >= 0 else None, high)


def _open(known: Known, site: Site, bottom_right: bool) -> bool:
    band = known.band(site, bottom_right)
    return band is None or band.open


def _empties(known: Known, band: Band, bottom_right: bool) -> bool:
    """Whether a band leaves a row without keys at one of the sizes it was proved at."""
    return any(
        Extent(queries, keys, keys - queries if bottom_right else 0).empties(band)
        for queries, keys in known.extents
    )


def _masks(part: Part, known: dict[Term, Known], forbidding: bool) -> Iterator[tuple[Mask, float]]:
    """The masks that stay of a part, each with what the original makes of masked scores.

    Beside a band they forbid, even if the original adds a low finite number: the band is no sum.
    """
    if not part.changed:
        mask = part.mask
        lowered = forbidding and mask.kind in ("keep", "drop")
        yield replace(mask, fill=_NEVER) if lowered else mask, mask.fill
        return
    # several conditions cannot each add the lowest number
    forbidding |= sum(term.kind != "add" for term in part.rest) > 1
    for term in part.rest:
        sizes, kind = known[term].sizes, known[term].element_type
        assert sizes is not None
        assert kind is not None
        steps = part.mask.operand.steps if len(sizes) == _rank(part.mask) else ()
        operand = Operand(term.tensor, (*term.lift, *steps))
        aligned = (1,) * sum(len(s.axes) for s in steps if isinstance(s, Unsqueeze)) + sizes
        fill = _NEVER if forbidding else term.fill
        yield Mask(term.kind, operand, kind, term.factor, fill, aligned), term.fill


def _rank(mask: Mask) -> int:
    """The rank of a mask's tensor, before the steps that lead to the scores' four dimensions."""
    steps = mask.operand.steps
    return len(mask.sizes) - sum(len(s.axes) for s in steps if isinstance(s, Unsqueeze))


def _empty_rows(
    site: Site, masks: list[tuple[Mask, float]], emptied: bool, finite: bool
) -> tuple[str, ...]:
    """What changes in rows that are left without any key: the operator gives zeros."""
    fills = [fill for mask, fill in masks if mask.forbids]
    if any(fill > _NEVER for fill in fills) or (finite and fills):
        return (_MEAN,)
    return (_NAN,) if (fills or emptied) and not site.guarded else ()
