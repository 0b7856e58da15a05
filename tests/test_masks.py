"""Masks understood: what becomes attributes, what stays, and that the rewritten model agrees."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import BOOL, FLOAT, LOWEST, Array, Writer, build
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto
from running import both_ways, close, only_site, rewritten

from sparsify.masks.forms import Band, Extent, agreed, band_of
from sparsify.site import Site

HEADS, DIM = 2, 8
INT64 = TensorProto.INT64
INF = float("inf")

Allowed = Callable[[Array, Array, int, int], Any]


class Masks(Writer):
    """Writes masks in the spellings of exporters, for queries `q` among keys `k`."""

    def ints(self, *values: int) -> str:
        return self.store(values, np.int64)

    def number(self, value: float, dtype: Any = np.int64) -> str:
        return self.store(value, dtype)

    def length(self, name: str, axis: int = 2) -> str:
        """One size of a tensor, as a scalar."""
        return self.op("Gather", self.op("Shape", name), self.number(axis), axis=0)

    def positions(self, length: str) -> str:
        return self.op("Range", self.number(0), length, self.number(1))

    def rows(self, values: str) -> str:
        return self.op("Unsqueeze", values, self.ints(0, 1, 3))

    def columns(self, values: str) -> str:
        return self.op("Unsqueeze", values, self.ints(0, 1, 2))

    def queries(self, past: bool = False) -> str:
        """The positions of queries, `[1, 1, s, 1]`."""
        positions = self.positions(self.length("q"))
        if past:
            positions = self.op("Add", positions, self.length("past"))
        return self.rows(positions)

    def keys(self) -> str:
        """The positions of keys, `[1, 1, 1, t]`."""
        return self.columns(self.positions(self.length("k")))

    def causal(self, past: bool = False) -> str:
        return self.op("LessOrEqual", self.keys(), self.queries(past))

    def window(self, size: int, past: bool = False) -> str:
        distance = self.op("Sub", self.queries(past), self.number(size))
        return self.op("Greater", self.keys(), distance)

    def filled(self, keep: str, fill: float = -INF) -> str:
        zero, low = self.number(0, np.float32), self.number(fill, np.float32)
        return self.op("Where", keep, zero, low)

    def padding(self) -> str:
        """The padding mask, an input, as booleans `[b, 1, 1, t]`."""
        return self.op("Unsqueeze", self.op("Cast", "attention_mask", to=BOOL), self.ints(1, 2))


Spelling = Callable[[Masks], tuple[str, str]]


@dataclass(frozen=True)
class Case:
    """A spelling of a mask, the attributes it should become and the masks that should stay."""

    spell: Spelling
    allowed: Allowed
    causal: bool = False
    left: int = -1
    right: int = -1
    bottom_right: bool = False
    rest: int = 0
    past: bool = False
    note: str = ""


def _model(spell: Spelling, past: bool = False, static: int | None = None) -> ModelProto:
    w = Masks()
    if past:
        w.nodes.append(onnx.helper.make_node("Concat", ["past", "new"], ["k"], axis=2))
    kind, mask = spell(w)
    scores = w.op("MatMul", "q", w.op("Transpose", "k", perm=[0, 1, 3, 2]))
    scores = w.op("Mul", scores, w.number(0.25, np.float32))
    if kind == "add":
        scores = w.op("Add", scores, mask)
    else:
        low = w.number(-INF, np.float32)
        sides = (scores, low) if kind == "keep" else (low, scores)
        scores = w.op("Where", mask, *sides)
    weights = w.op("Softmax", scores, name="softmax", axis=-1)
    w.nodes.append(onnx.helper.make_node("MatMul", [weights, "v"], ["y"], name="pv"))
    s: int | str = static or "s"
    keys: int | str = "t" if past else s
    shape = ["b", HEADS, s, DIM]
    inputs: list[Any] = [("q", FLOAT, shape), ("v", FLOAT, ["b", HEADS, keys, DIM])]
    if past:
        inputs += [("past", FLOAT, ["b", HEADS, "p", DIM]), ("new", FLOAT, shape)]
    else:
        inputs += [("k", FLOAT, shape)]
    read = {name for node in w.nodes for name in node.input}
    if "attention_mask" in read:
        inputs.append(("attention_mask", INT64, ["b", keys]))
    if "position_ids" in read:
        inputs.append(("position_ids", INT64, ["b", s]))
    return build(w.nodes, inputs, [("y", FLOAT, ["b", HEADS, s, DIM])], w.stored, 17)


def _feeds(model: ModelProto, length: int, past: int) -> dict[str, Array]:
    rng = np.random.default_rng(length + past)
    sizes = {"b": 2, "s": length, "t": length + past, "p": past}
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in dims]
        if value.name == "attention_mask":
            feeds[value.name] = (rng.random(shape) < 0.7).astype(np.int64)
            feeds[value.name][:, 0] = 1
        elif value.name == "position_ids":
            feeds[value.name] = np.broadcast_to(np.arange(shape[1]), shape).copy()
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
    return feeds


def _truth(feeds: dict[str, Array], allowed: Allowed) -> Array:
    q, v = feeds["q"].astype(np.float64), feeds["v"].astype(np.float64)
    k = feeds["k"] if "k" in feeds else np.concatenate([feeds["past"], feeds["new"]], axis=2)
    scores = q @ k.astype(np.float64).swapaxes(2, 3) * 0.25
    queries, keys = scores.shape[2:]
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    kept = np.broadcast_to(np.asarray(allowed(i, j, queries, keys)), scores.shape)
    if "attention_mask" in feeds:
        kept = kept & (feeds["attention_mask"][:, None, None, :] != 0)
    scores = np.where(kept, scores, -np.inf)
    with np.errstate(invalid="ignore"):  # a row without keys is NaN
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ v)


def _attributes(site: Site) -> tuple[bool, int, int, bool, int]:
    windows = (site.left_window, site.right_window)
    return (site.causal, *windows, site.bottom_right, len(site.masks))


def _check(case: Case, folder: Path) -> Site:
    """The site of a case, whose rewritten model agrees with its truth at several lengths."""
    model = _model(case.spell, case.past)
    site = only_site(model, folder)
    output = rewritten(model, folder)
    for length, past in ((5, 0), (40, 0), (1, 9), (33, 70)):
        feeds = _feeds(model, length, past if case.past else 0)
        wanted = _truth(feeds, case.allowed)
        for got in both_ways(output, feeds):
            close(got["y"], wanted, 1e-5)
    return site


def _causal(i: Array, j: Array, queries: int, keys: int) -> Any:
    return j <= i + keys - queries


def _near(left: int, right: int) -> Allowed:
    def allowed(i: Array, j: Array, queries: int, keys: int) -> Any:
        p = i + keys - queries
        return (j >= p - left) & (j <= p + right)

    return allowed


def _all(i: Array, j: Array, queries: int, keys: int) -> Any:
    return np.ones((queries, keys), dtype=np.bool_)


# What becomes attributes ------------------------------------------------------------------------


def _square(w: Masks) -> str:
    """The shape `[s, s]`."""
    length = w.op("Unsqueeze", w.length("q"), w.ints(0))
    return w.op("Concat", length, length, axis=0)


def _by_range(w: Masks) -> tuple[str, str]:
    return "keep", w.causal()


def _by_not(w: Masks) -> tuple[str, str]:
    return "drop", w.op("Not", w.op("Identity", w.causal()))


def _by_trilu(w: Masks) -> tuple[str, str]:
    ones = w.op("Expand", w.number(1), _square(w))
    return "keep", w.op("Cast", w.op("Trilu", ones, upper=0), to=BOOL)


def _by_filled_trilu(w: Masks) -> tuple[str, str]:
    low = onnx.helper.make_tensor("value", FLOAT, [1], [-INF])
    filled = w.op("ConstantOfShape", _square(w), value=low)
    return "add", w.op("Trilu", filled, w.number(1), upper=1)


def _by_buffer(w: Masks) -> tuple[str, str]:
    buffer = w.store(np.tril(np.ones((1, 1, 192, 192))), np.bool_)
    length = w.op("Unsqueeze", w.length("q"), w.ints(0))
    ends = w.op("Concat", length, length, axis=0)
    return "keep", w.op("Slice", buffer, w.ints(0, 0), ends, w.ints(2, 3))


def _by_buffer_with_past(w: Masks) -> tuple[str, str]:
    buffer = w.store(np.tril(np.ones((1, 1, 192, 192))), np.uint8)
    queries, keys = (w.op("Unsqueeze", w.length(name), w.ints(0)) for name in "qk")
    rows = w.op("Slice", buffer, w.op("Sub", keys, queries), keys, w.ints(2))
    kept = w.op("Slice", rows, w.ints(0), keys, w.ints(3))
    return "keep", w.op("Cast", kept, to=BOOL)


def _both(w: Masks) -> tuple[str, str]:
    return "keep", w.op("And", w.causal(), w.window(6))


def _chain(w: Masks) -> tuple[str, str]:
    low = w.number(LOWEST, np.float32)
    return "add", w.op("Where", w.window(6), w.filled(w.causal(), LOWEST), low)


def _two_sums(w: Masks) -> tuple[str, str]:
    return "add", w.op("Add", w.filled(w.causal()), w.filled(w.window(6)))


def _one_minus(w: Masks) -> tuple[str, str]:
    kept = w.op("Cast", w.causal(), to=FLOAT)
    one, low = w.number(1, np.float32), w.number(-1e9, np.float32)
    return "add", w.op("Mul", w.op("Sub", one, kept), low)


def _symmetric(w: Masks) -> tuple[str, str]:
    distance = w.op("Abs", w.op("Sub", w.queries(), w.keys()))
    return "keep", w.op("LessOrEqual", distance, w.number(4))


def _expanded(w: Masks) -> tuple[str, str]:
    shape = w.op("Concat", w.op("Shape", "q", end=1), w.ints(1), _square(w), axis=0)
    return "add", w.filled(w.op("Expand", w.causal(), shape), LOWEST)


def _everything(w: Masks) -> tuple[str, str]:
    return "keep", w.op("GreaterOrEqual", w.op("Add", w.keys(), w.queries()), w.number(0))


def _long_window(w: Masks) -> tuple[str, str]:
    return "keep", w.op("And", w.causal(), w.window(500))


MEAN = "empty_rows: original mean(V) -> 0"
NAN = "empty_rows: original NaN -> 0"

PROVED = {
    "range": Case(_by_range, _causal, causal=True),
    "not": Case(_by_not, _causal, causal=True),
    "trilu": Case(_by_trilu, _causal, causal=True),
    "filled trilu": Case(_by_filled_trilu, _causal, causal=True),
    "buffer": Case(_by_buffer, _causal, causal=True),
    "window": Case(_both, _near(5, 0), causal=True, left=5),
    "where chain": Case(_chain, _near(5, 0), causal=True, left=5),
    "two sums": Case(_two_sums, _near(5, 0), causal=True, left=5),
    "one minus": Case(_one_minus, _causal, causal=True),
    "symmetric": Case(_symmetric, _near(4, 4), left=4, right=4),
    "expanded": Case(_expanded, _causal, causal=True),
    "everything": Case(_everything, _all),
    "long window": Case(_long_window, _near(499, 0), causal=True, left=499),
    "causal with past": Case(
        lambda w: ("keep", w.causal(past=True)), _causal, causal=True, bottom_right=True, past=True
    ),
    "buffer with past": Case(
        _by_buffer_with_past, _causal, causal=True, bottom_right=True, past=True
    ),
    "window with past": Case(
        lambda w: ("keep", w.op("And", w.causal(past=True), w.window(6, past=True))),
        _near(5, 0),
        causal=True,
        left=5,
        bottom_right=True,
        past=True,
    ),
    "top left with past": Case(
        lambda w: ("keep", w.causal()), lambda i, j, queries, keys: j <= i, causal=True, past=True
    ),
    "one further": Case(
        lambda w: (
            "keep",
            w.op("LessOrEqual", w.keys(), w.op("Add", w.queries(), w.number(1))),
        ),
        _near(1000, 1),
        right=1,
    ),
}


@pytest.mark.parametrize("name", PROVED)
def test_a_mask_of_positions_becomes_attributes(name: str, tmp_path: Path) -> None:
    case = PROVED[name]
    site = _check(case, tmp_path)
    wanted = (case.causal, case.left, case.right, case.bottom_right, case.rest)
    assert _attributes(site) == wanted
    assert site.notes == ()


def test_no_square_tensor_is_left(tmp_path: Path) -> None:
    output = onnx.load(rewritten(_model(_chain), tmp_path))
    assert not {node.op_type for node in output.graph.node} & {"Where", "LessOrEqual", "Greater"}


# What stays --------------------------------------------------------------------------------------


def _with_padding(w: Masks) -> tuple[str, str]:
    return "add", w.filled(w.op("And", w.causal(), w.padding()))


def _with_padding_lowest(w: Masks) -> tuple[str, str]:
    return "add", w.filled(w.op("And", w.padding(), w.causal()), LOWEST)


def _padding_by_arithmetic(w: Masks) -> tuple[str, str]:
    wide = w.op("Unsqueeze", w.op("Cast", "attention_mask", to=FLOAT), w.ints(1, 2))
    one, low = w.number(1, np.float32), w.number(-1e4, np.float32)
    padding = w.op("Mul", w.op("Sub", one, wide), low)
    return "add", w.op("Add", padding, w.filled(w.causal()))


def _padding_only(w: Masks) -> tuple[str, str]:
    shape = w.op("Concat", w.op("Shape", "q", end=1), w.ints(1), _square(w), axis=0)
    return "add", w.filled(w.op("Expand", w.padding(), shape), LOWEST)


BESIDE = {
    "and": Case(_with_padding, _causal, causal=True, rest=1, note=NAN),
    "and, lowest": Case(_with_padding_lowest, _causal, causal=True, rest=1, note=MEAN),
    "arithmetic": Case(_padding_by_arithmetic, _causal, causal=True, rest=1, note=MEAN),
    "padding only": Case(_padding_only, _all, rest=1),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_hangs_on_data_stays_in_its_smallest_form(name: str, tmp_path: Path) -> None:
    case = BESIDE[name]
    site = _check(case, tmp_path)
    assert _attributes(site) == (case.causal, -1, -1, False, 1)
    assert len(site.masks[0].sizes) < 3 or site.masks[0].sizes[1:3] == (1, 1)
    assert site.averaged == (name == "and, lowest")
    assert site.notes == ((case.note,) if case.note and not site.averaged else ())


def _from_position_ids(w: Masks) -> tuple[str, str]:
    ids = w.op("Unsqueeze", "position_ids", w.ints(1))
    rows, columns = (w.op("Unsqueeze", ids, w.ints(axis)) for axis in (3, 2))
    return "keep", w.op("LessOrEqual", columns, rows)


def _prefix(w: Masks) -> tuple[str, str]:
    return "keep", w.op("Or", w.causal(), w.op("Less", w.keys(), w.number(3)))


def _blocks(w: Masks) -> tuple[str, str]:
    size = w.number(4)
    return "keep", w.op("Equal", w.op("Div", w.queries(), size), w.op("Div", w.keys(), size))


def _strictly_before(w: Masks) -> tuple[str, str]:
    first = w.op("Equal", w.keys(), w.number(0))
    return "keep", w.op("Or", first, w.op("Less", w.keys(), w.queries()))


def _band_with_a_hole(w: Masks) -> tuple[str, str]:
    hole = w.op("Equal", w.op("Mul", w.keys(), w.queries()), w.number(90 * 95))
    return "keep", w.op("And", w.causal(), w.op("Not", hole))


def _buffer_of_windows(w: Masks) -> tuple[str, str]:
    """Causal as far as short inputs show; a window of 150 beyond."""
    i, j = np.arange(192)[:, None], np.arange(192)[None, :]
    kept = (j <= i) & ((j > i - 150) | (i % 2 == 0))
    buffer = w.store(kept[None, None], np.bool_)
    length = w.op("Unsqueeze", w.length("q"), w.ints(0))
    ends = w.op("Concat", length, length, axis=0)
    return "keep", w.op("Slice", buffer, w.ints(0, 0), ends, w.ints(2, 3))


def _ids_equal_one(w: Masks) -> tuple[str, str]:
    """Ids may be more than 0 and 1: only 1 is kept, not all that is not 0."""
    ids = w.op("Unsqueeze", "position_ids", w.ints(1, 2))
    first = w.op("Equal", w.keys(), w.number(0))
    return "keep", w.op("And", w.causal(), w.op("Or", w.op("Equal", ids, w.number(1)), first))


def _alibi(w: Masks) -> tuple[str, str]:
    distance = w.op("Cast", w.op("Sub", w.keys(), w.queries()), to=FLOAT)
    return "add", w.op("Mul", distance, w.number(0.5, np.float32))


@pytest.mark.parametrize(
    "spell", [_from_position_ids, _prefix, _blocks, _strictly_before, _buffer_of_windows, _alibi]
)
def test_what_is_no_band_stays(spell: Spelling, tmp_path: Path) -> None:
    site = only_site(_model(spell), tmp_path)
    assert _attributes(site) == (False, -1, -1, False, 1)


def test_a_band_beside_another_mask_of_positions(tmp_path: Path) -> None:
    def spell(w: Masks) -> tuple[str, str]:
        return "keep", w.op("And", w.causal(), _blocks(w)[1])

    case = Case(spell, lambda i, j, queries, keys: (j <= i) & (i // 4 == j // 4))
    assert _attributes(_check(case, tmp_path)) == (True, -1, -1, False, 1)


def test_a_hole_far_down_is_seen(tmp_path: Path) -> None:
    # the number in the graph says that lengths up to it must be looked at
    site = only_site(_model(_band_with_a_hole), tmp_path)
    assert site.causal
    assert len(site.masks) == 1


def test_a_window_that_is_computed_is_seen(tmp_path: Path) -> None:
    def spell(w: Masks) -> tuple[str, str]:
        size = w.op("Mul", w.number(16), w.number(20))
        near = w.op("Greater", w.keys(), w.op("Sub", w.queries(), size))
        return "keep", w.op("And", w.causal(), near)

    assert _attributes(only_site(_model(spell), tmp_path)) == (True, 319, -1, False, 0)


def test_ids_are_no_mask(tmp_path: Path) -> None:
    site = only_site(_model(_ids_equal_one), tmp_path)
    assert site.causal
    output = rewritten(_model(_ids_equal_one), tmp_path)
    feeds = _feeds(_model(_ids_equal_one), 9, 0)
    wanted = _truth(feeds, lambda i, j, queries, keys: (j <= i) & (j <= 1))
    for got in both_ways(output, feeds):
        close(got["y"], wanted, 1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_combinations_of_terms_agree_with_their_truth(seed: int, tmp_path: Path) -> None:
    """Random terms joined in random spellings: the site says what numpy says."""
    rng = np.random.default_rng(seed)
    left, right = int(rng.integers(1, 90)), int(rng.integers(1, 9))
    past = bool(rng.random() < 0.5)

    def spell(w: Masks) -> tuple[str, str]:
        ahead = w.op("Add", w.queries(past), w.number(right))
        terms = [w.window(left + 1, past), w.op("Not", w.op("Greater", w.keys(), ahead))]
        terms += [w.causal(past)] if seed % 2 else []
        terms += [w.padding()] if seed % 3 == 0 else []
        mask = terms[0]
        for way, term in enumerate(terms[1:], seed):
            way %= 3
            if way == 0:
                mask = w.op("And", term, mask)
            elif way == 1:
                product = w.op("Mul", w.op("Cast", mask, to=INT64), w.op("Cast", term, to=INT64))
                mask = w.op("Cast", product, to=BOOL)
            else:
                mask = w.op("Not", w.op("Or", w.op("Not", mask), w.op("Not", term)))
        return ("add", w.filled(mask)) if seed % 2 else ("drop", w.op("Not", mask))

    site = only_site(_model(spell, past), tmp_path)
    high = 0 if seed % 2 else right
    wanted = (high == 0, left, high if high else -1, past, int(seed % 3 == 0))
    assert _attributes(site) == wanted
    model = _model(spell, past)
    output = rewritten(model, tmp_path)
    for length, cached in ((5, 0), (1, 9), (33, 70)):
        feeds = _feeds(model, length, cached if past else 0)
        wanted_output = np.nan_to_num(_truth(feeds, _near(left, high)))  # rows without keys: 0
        for got in both_ways(output, feeds):
            close(got["y"], wanted_output, 1e-5)


def test_one_fixed_length_is_all_there_is(tmp_path: Path) -> None:
    def spell(w: Masks) -> tuple[str, str]:
        return "keep", w.store(np.tril(np.ones((24, 24))), np.bool_)

    assert _attributes(only_site(_model(spell, static=24), tmp_path)) == (True, -1, -1, False, 0)


# Bands --------------------------------------------------------------------------------------------


@given(
    queries=st.integers(1, 9),
    past=st.integers(0, 9),
    low=st.none() | st.integers(-6, 0),
    high=st.none() | st.integers(0, 6),
    flip=st.none() | st.integers(0, 500),
)
@settings(deadline=None, max_examples=200)
def test_a_band_is_found_bit_for_bit(
    queries: int, past: int, low: int | None, high: int | None, flip: int | None
) -> None:
    keys = queries + past
    distance = np.arange(keys)[None, :] - np.arange(queries)[:, None] - past
    kept = np.ones(distance.shape, dtype=np.bool_)
    kept &= distance >= (-99 if low is None else low)
    kept &= distance <= (99 if high is None else high)
    if flip is not None:
        kept.reshape(-1)[flip % kept.size] ^= True
    band = band_of(kept, past)
    if band is None:
        assert flip is not None
        return
    again = distance >= (-99 if band.low is None else band.low)
    again &= distance <= (99 if band.high is None else band.high)
    np.testing.assert_array_equal(again, kept)


def test_grids_agree_where_each_shows_what_it_has_room_for() -> None:
    short, long = Extent(7, 7), Extent(40, 40)
    assert agreed([(short, Band()), (long, Band(low=-9))]) == Band(low=-9)
    assert agreed([(short, Band()), (long, Band(low=-5))]) is None
    assert agreed([(short, Band(high=0)), (long, Band(high=1))]) is None
    assert agreed([(short, None), (long, Band())]) is None
