"""Inputs on which every implementation of SparseAttention must agree: a fixed list of cases.

Single features, all pairs, and random combinations on awkward shapes. A case is drawn from a
generator seeded by its name, so adding one changes no other.
"""

import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[np.generic]]
Attributes = dict[str, int | float]

LENGTHS = (1, 5, 31, 33, 64, 65, 130)
_OFTEN = (0.04, 0.08, 0.12, 0.16, 0.16, 0.2, 0.24)
"""How often each length is drawn: the long ones have more blocks to get wrong."""
HEADS = ((1, 1), (2, 2), (2, 1), (3, 3), (4, 2), (6, 2), (8, 4), (8, 1))
DIMS = ((8, 8), (16, 24), (7, 5), (64, 64), (33, 16), (1, 3))
WINDOWS = ((0, 0), (7, -1), (-1, 3), (16, 5), (40, 0), (-1, -1))
NEEDS = {
    "residual": {"selection"},
    "gathered": {"selection", "residual"},
    "iso": {"selection", "residual"},
    "query_offset": {"causal"},
}
"""What a feature is of no use without."""

FEATURES = (
    "selection",
    "attn_mask",
    "attn_bias",
    "key_lengths",
    "sinks",
    "query_offset",
    "causal",
    "window",
    "softcap",
    "residual",
    "gathered",
    "iso",
)
"""What a case can ask for; "gqa" follows from its sizes."""

REJECTED = frozenset({"iso", "softcap"})
"""The one pair that the operator rejects."""


@dataclass(frozen=True, eq=False)
class Case:
    """One call: float32 values for every float input; inputs not named are left out."""

    name: str
    inputs: Mapping[str, npt.NDArray[np.generic]]
    attributes: Mapping[str, int | float]
    uses: frozenset[str]


@dataclass(frozen=True)
class Sizes:
    """The dimensions of one call: `heads` is a multiple of `kv_heads`."""

    batch: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    dim: int
    value_dim: int


@dataclass(frozen=True)
class _Draw(Sizes):
    """What the makers of inputs know: the sizes, the random numbers, and the features."""

    rng: np.random.Generator
    features: frozenset[str]

    def normal(self, *shape: int) -> npt.NDArray[np.float32]:
        """Give unit normal values."""
        return self.rng.standard_normal(shape, dtype=np.float32)

    def one_of(self, *values: int) -> int:
        """One of `values`."""
        return int(self.rng.choice(values))

    def chance(self, probability: float) -> bool:
        """Find wow and then."""
        return bool(self.rng.random() < probability)


def neutral_inputs() -> Arrays:
    """Give the value of each optional input that changes nothing."""
    return {
        "block_indices": np.full((1, 1, 1, 1), -1, np.int32),
        "block_count": np.full((1, 1, 1), -1, np.int32),
        "attn_mask": np.ones((1, 1), np.bool_),
        "attn_bias": np.zeros((1, 1), np.float32),
        "key_lengths": np.full(1, np.iinfo(np.int64).max, np.int64),
        "sinks": np.full(1, -np.inf, np.float32),
        "query_offset": np.zeros(1, np.int64),
    }


def operator_cases(random: int = 240) -> tuple[Case, ...]:
    """All cases: single features, pairs, and `random` combinations."""
    singles = [{feature} for feature in FEATURES]
    pairs = [set(pair) for pair in itertools.combinations(FEATURES, 2)]
    cases = [make_case("dense", set()), make_case("dense-1", set())]
    cases += [make_case(f"{'+'.join(sorted(s))}-{i}", s) for s in singles for i in range(3)]
    cases += [make_case("+".join(sorted(pair)), pair) for pair in pairs if pair != REJECTED]
    return (*cases, *(random_case(number) for number in range(random)))


def random_case(number: int) -> Case:
    """Give a random combination of features on a random shape."""
    rng = np.random.default_rng(zlib.crc32(f"features {number}".encode()))
    chosen = {feature for feature in FEATURES if rng.random() < 0.35}
    if chosen >= REJECTED:
        chosen -= {"softcap"}
    return make_case(f"random-{number}", chosen)


def make_case(name: str, features: Iterable[str], sizes: Sizes | None = None) -> Case:
    """Make the case of this name, with `features` and what they need; `None` draws the sizes."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    chosen = _sizes(rng) if sizes is None else sizes
    uses = _closed(frozenset(features))
    if chosen.heads != chosen.kv_heads:
        uses |= {"gqa"}
    draw = _Draw(**vars(chosen), rng=rng, features=uses)
    attributes = _attributes(draw)
    return Case(name, _inputs(draw, attributes), attributes, uses)


def _closed(features: frozenset[str]) -> frozenset[str]:
    needed = features.union(*(NEEDS.get(feature, set()) for feature in features))
    return needed - ({"causal"} - features) if "window" in features else needed


def _sizes(rng: np.random.Generator) -> Sizes:
    heads, kv_heads = HEADS[rng.integers(len(HEADS))]
    dim, value_dim = DIMS[rng.integers(len(DIMS))]
    return Sizes(
        batch=int(rng.choice((1, 2))),
        heads=heads,
        kv_heads=kv_heads,
        rows=int(rng.choice(LENGTHS, p=_OFTEN)),
        keys=int(rng.choice(LENGTHS, p=_OFTEN)),
        dim=dim,
        value_dim=value_dim,
    )


# Attributes -------------------------------------------------------------------------------------


def _attributes(draw: _Draw) -> Attributes:
    uses = draw.features
    left, right = WINDOWS[draw.rng.integers(len(WINDOWS))] if "window" in uses else (-1, -1)
    gathered = "gathered" in uses
    return {
        "q_block": draw.one_of(16, 32, 64, 128),
        "k_block": 1 if gathered else draw.one_of(4, 16, 64),
        "scale": float(np.float32(draw.dim**-0.5)),
        "softcap": float(draw.one_of(0, 1, 2, 30)) if "softcap" in uses else 0.0,
        "is_causal": int("causal" in uses and draw.chance(0.9)),
        "left_window_size": left,
        "right_window_size": right,
        "residual": _residual(draw),
        "residual_block": draw.one_of(4, 16, 64) if gathered else 0,
    }


def _residual(draw: _Draw) -> int:
    if "iso" in draw.features:
        return draw.one_of(2, 2, 2, 1)
    return draw.one_of(1, 1, 1, 0) if "residual" in draw.features else 0


# Inputs -----------------------------------------------------------------------------------------


def _inputs(draw: _Draw, attributes: Attributes) -> Arrays:
    offset = 3 * draw.normal(1, 1, 1, draw.dim)  # keys of real models have a common part
    inputs: Arrays = {
        "Q": draw.normal(draw.batch, draw.heads, draw.rows, draw.dim),
        "K": draw.normal(draw.batch, draw.kv_heads, draw.keys, draw.dim) + offset / draw.dim**0.5,
        "V": draw.normal(draw.batch, draw.kv_heads, draw.keys, draw.value_dim),
    }
    if "selection" in draw.features:
        inputs |= _selection(draw, int(attributes["q_block"]), int(attributes["k_block"]))
    for name, make in _MAKERS.items():
        if name in draw.features:
            inputs[name] = make(draw)
    return inputs


def _selection(draw: _Draw, q_block: int, k_block: int) -> Arrays:
    """Random blocks; some query blocks keep none, some all, some list ids beyond the keys."""
    shape = (draw.one_of(1, draw.batch), draw.one_of(1, draw.heads), -(-draw.rows // q_block))
    blocks = -(-draw.keys // k_block)
    density = float(draw.rng.choice((0.05, 0.3, 0.7)))
    rows = [_block_row(draw, blocks, density) for _ in range(int(np.prod(shape)))]
    width = max(1, *(len(ids) for ids, _ in rows)) + draw.one_of(0, 0, 3)
    padded = [ids + [-1] * (width - len(ids)) for ids, _ in rows]
    return {
        "block_indices": np.array(padded, np.int32).reshape(*shape, width),
        "block_count": np.array([count for _, count in rows], np.int32).reshape(shape),
    }


def _block_row(draw: _Draw, blocks: int, density: float) -> tuple[list[int], int]:
    ids = np.flatnonzero(draw.rng.random(blocks) < density).tolist()
    if draw.chance(0.1):
        return ids, -1
    if draw.chance(0.1):
        ids = []
    if draw.chance(0.1):
        ids += [blocks, blocks + 7]
    return ids, len(ids)


def _mask_shape(draw: _Draw) -> tuple[int, ...]:
    """Give a shape of rank 1 to 4 that broadcasts to the scores."""
    full = (draw.batch, draw.heads, draw.rows, draw.keys)
    shape = tuple(size if draw.chance(0.6) else 1 for size in full[:3])
    keys = draw.keys if draw.chance(0.9) else 1
    return (*shape[draw.one_of(0, 0, 1, 2, 3) :], keys)


def _attn_mask(draw: _Draw) -> npt.NDArray[np.generic]:
    shape = _mask_shape(draw)
    return draw.rng.random(shape) < _keep_probability(draw, shape)


def _attn_bias(draw: _Draw) -> npt.NDArray[np.generic]:
    shape = _mask_shape(draw)
    bias = draw.normal(*shape)
    if draw.chance(0.6):
        bias[draw.rng.random(shape) >= _keep_probability(draw, shape)] = -np.inf
    return bias


def _keep_probability(draw: _Draw, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """How likely each entry is allowed: whole rows of blocks and columns are often alike."""
    columns = draw.rng.choice((0.0, 1.0, 1.0, 1.0), size=shape[-1])
    if len(shape) == 1 or draw.chance(0.3):
        return columns if draw.chance(0.5) else np.full(shape[-1], 0.8)
    rows = draw.rng.choice((0.0, 1.0, 1.0, 1.0, 1.0, 0.9), size=(shape[-2], 1))
    if draw.chance(0.6):
        rows = np.repeat(rows[::32], 32, axis=0)[: shape[-2]]
    return np.asarray(rows * columns)


def _key_lengths(draw: _Draw) -> npt.NDArray[np.generic]:
    batch = draw.one_of(1, draw.batch)
    lengths = (0, 1, draw.keys // 2, draw.keys - 1, draw.keys + 5)
    return draw.rng.choice(lengths, size=batch, p=(0.06, 0.06, 0.44, 0.22, 0.22))


def _sinks(draw: _Draw) -> npt.NDArray[np.generic]:
    sinks = draw.normal(draw.one_of(1, draw.heads, draw.heads))
    if draw.chance(0.3):
        sinks[0] = -np.inf
    return sinks


def _query_offset(draw: _Draw) -> npt.NDArray[np.generic]:
    return draw.rng.integers(-draw.rows // 4, draw.keys + 3, size=draw.one_of(1, draw.batch))


_MAKERS: Mapping[str, Callable[[_Draw], npt.NDArray[np.generic]]] = {
    "attn_mask": _attn_mask,
    "attn_bias": _attn_bias,
    "key_lengths": _key_lengths,
    "sinks": _sinks,
    "query_offset": _query_offset,
}
