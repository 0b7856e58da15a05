"""The built-in patterns and the sample: what they keep, drawn; and mean_key against plain numpy."""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from sparsify.draw import draw_svg, draw_text, example_grid, pattern_grid
from sparsify.errors import SparsifyError
from sparsify.example import Setting, clustered, run_selection, selection_model
from sparsify.grids import grid_from_selection, grid_of
from sparsify.pattern import Grid
from sparsify.testing import check_pattern
from sparsify_plugins.patterns.dense_regions import DenseRegions
from sparsify_plugins.patterns.diagonal import Diagonal
from sparsify_plugins.patterns.mean_key import MeanKey
from sparsify_plugins.patterns.window import Window

GOLDEN = Path(__file__).parent / "golden"
SAMPLE = Path(__file__).parents[1] / "samples" / "custom_pattern"

PATTERNS = {
    "window": Window(size=128),
    "window_global": Window(size=100, global_tokens=64, k_block=16),
    "dense_regions": DenseRegions(region=256),
    "dense_regions_neighbours": DenseRegions(region=128, neighbours=1, global_columns=32),
    "diagonal": Diagonal(),
    "diagonal_wide_queries": Diagonal(q_block=64, k_block=16),
    "diagonal_wide_keys": Diagonal(q_block=16, k_block=64),
    "mean_key": MeanKey(density=0.25, k_block=64),
    "mean_key_tau": MeanKey(tau=0.8, k_block=64),
}

quick = settings(derandomize=True, deadline=None, max_examples=40)


@pytest.mark.parametrize("name", PATTERNS)
def test_keeps_the_contract(name):
    check_pattern(PATTERNS[name])


def test_one_density_per_head_keeps_the_contract():
    check_pattern(MeanKey(density=(0.1, 0.25, 0.5, 1.0)))


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("name", PATTERNS)
def test_drawing(name, causal):
    pattern = PATTERNS[name]
    grid = Grid(1, 1, 1024, 1024, pattern.q_block, pattern.k_block, causal=causal)
    path = GOLDEN / f"{name}{'_causal' if causal else ''}.txt"
    assert draw_text(pattern_grid(pattern, grid)[0]) == path.read_text()


# Local patterns, against one comparison per pair of tokens ----------------------------------------


def blocks_with(pairs, grid):
    """Blocks that hold a true pair of tokens; queries are continued to the end of their block."""
    kept = np.zeros((grid.q_blocks, grid.k_blocks), dtype=bool)
    for row, column in np.argwhere(pairs):
        kept[row // grid.q_block, column // grid.k_block] = True
    return kept


def positions(grid):
    query = np.arange(grid.q_blocks * grid.q_block)[:, None] + grid.offset
    return query, np.arange(grid.k_len)[None, :]


grids = st.builds(
    Grid,
    heads=st.just(1),
    kv_heads=st.just(1),
    q_len=st.integers(1, 40),
    k_len=st.integers(1, 40),
    q_block=st.sampled_from([1, 4, 8]),
    k_block=st.sampled_from([1, 4, 8]),
    offset=st.integers(-10, 50),
)


@quick
@given(grids, st.integers(0, 12), st.integers(0, 6))
def test_window_is_what_tokens_say(grid, size, global_tokens):
    query, key = positions(grid)
    near = blocks_with(np.abs(query - key) <= size, grid)
    near |= nearest_block(near, grid)
    everywhere = blocks_with((key < global_tokens) | (query + 0 * key < global_tokens), grid)
    if not global_tokens:
        everywhere[:] = False
    pattern = Window(size, global_tokens, grid.q_block, grid.k_block)
    assert (grid_of(pattern, grid)[0] == near | everywhere).all()


@quick
@given(grids, st.integers(1, 12), st.integers(0, 2), st.integers(0, 6))
def test_dense_regions_are_what_tokens_say(grid, region, neighbours, global_columns):
    query, key = positions(grid)
    dense = blocks_with(np.abs(query // region - key // region) <= neighbours, grid)
    dense |= nearest_block(dense, grid)
    dense |= blocks_with((key < global_columns) & (query <= query), grid)
    pattern = DenseRegions(region, neighbours, global_columns, grid.q_block, grid.k_block)
    assert (grid_of(pattern, grid)[0] == dense).all()


@quick
@given(grids)
def test_diagonal_is_what_tokens_say(grid):
    query, key = positions(grid)
    own = blocks_with(query == key, grid)
    own |= nearest_block(own, grid)
    assert (grid_of(Diagonal(grid.q_block, grid.k_block), grid)[0] == own).all()


def nearest_block(kept, grid):
    """For rows that keep nothing: the last block behind the keys, the first one before them."""
    nearest = np.zeros_like(kept)
    for row in np.flatnonzero(~kept.any(axis=1)):
        nearest[row, -1 if row * grid.q_block + grid.offset >= grid.k_len else 0] = True
    return nearest


# mean_key against float64 -------------------------------------------------------------------------


def predicted_mass(query, key, grid, scale):
    """[B, H, q_blocks, k_blocks] in float64, one query row at a time."""
    query, key = query.astype(np.float64), key.astype(np.float64)
    group = grid.heads // grid.kv_heads
    mass = np.zeros((len(query), grid.heads, grid.q_blocks, grid.k_blocks))
    starts = np.arange(0, grid.k_len, grid.k_block)
    sizes = np.minimum(starts + grid.k_block, grid.k_len) - starts
    for b, h, row in np.ndindex(len(query), grid.heads, grid.q_len):
        keys = key[b, h // group]
        means = np.stack([keys[s : s + n].mean(0) for s, n in zip(starts, sizes, strict=True)])
        weights = sizes * np.exp(scale * means @ query[b, h, row])
        weights = np.where(grid.causal & (starts > row + grid.offset), 0, weights)
        mass[b, h, row // grid.q_block] += weights / weights.sum()
    return mass


def seen_blocks(grid):
    if not grid.causal:
        return np.full(grid.q_blocks, grid.k_blocks)
    return grid.permitted().sum(axis=1)


mean_key_grids = st.builds(
    lambda q_len, k_len, group, **rest: Grid(2 * group, 2, q_len, k_len, **rest),
    q_len=st.integers(1, 70),
    k_len=st.integers(1, 70),
    group=st.integers(1, 3),
    q_block=st.sampled_from([8, 16]),
    k_block=st.sampled_from([1, 5, 16]),
    causal=st.booleans(),
    offset=st.sampled_from([0, 0, 3, 40]),
)


def kept_by(pattern, grid, batch, opset=17):
    query, key = clustered(grid, batch, seed=grid.q_len)
    setting = Setting(
        opset, 0.1, grid.heads // grid.kv_heads, causal=grid.causal, offset=grid.offset
    )
    indices, count = run_selection(selection_model(pattern, setting), query, key)
    kept = grid_from_selection(indices, count, grid.k_blocks)
    kept = np.broadcast_to(kept, (batch, grid.heads, grid.q_blocks, grid.k_blocks))
    return kept, predicted_mass(query, key, grid, 0.1)


def assert_best(kept, mass):
    worst_kept = np.where(kept, mass, np.inf).min(axis=-1)
    best_left = np.where(kept, -np.inf, mass).max(axis=-1)
    assert (worst_kept >= best_left - 1e-4).all()


@quick
@given(mean_key_grids, st.integers(1, 2), st.floats(0.01, 1))
def test_mean_key_keeps_the_share_of_most_mass(grid, batch, density):
    density = round(density, 3)
    pattern = MeanKey(density, q_block=grid.q_block, k_block=grid.k_block)
    kept, mass = kept_by(pattern, grid, batch)
    assert_best(kept, mass)
    wanted = np.maximum(np.floor(seen_blocks(grid) * density + 0.5 + 1e-9), 1)
    assert (kept.sum(axis=-1) == wanted).all()


@quick
@given(mean_key_grids, st.integers(1, 2), st.floats(0.05, 1))
def test_mean_key_keeps_the_smallest_set_of_the_mass(grid, batch, tau):
    pattern = MeanKey(tau=tau, q_block=grid.q_block, k_block=grid.k_block)
    kept, mass = kept_by(pattern, grid, batch)
    assert_best(kept, mass)
    wanted = tau * mass.sum(axis=-1)
    kept_mass = np.where(kept, mass, 0).sum(axis=-1)
    least = np.where(kept, mass, np.inf).min(axis=-1)
    assert (kept_mass >= wanted - 1e-3).all()
    assert (kept_mass - least <= wanted + 1e-3).all()


def test_each_head_keeps_its_own_density():
    grid = Grid(4, 2, 100, 128, 16, 8)
    pattern = MeanKey(density=(0.125, 0.25, 0.5, 1), q_block=16, k_block=8)
    kept, mass = kept_by(pattern, grid, 2, opset=12)
    assert_best(kept, mass)
    assert (kept.sum(axis=-1) == np.array([2, 4, 8, 16])[None, :, None]).all()


@pytest.mark.parametrize("opset", [12, 17, 21])
@pytest.mark.parametrize(
    "pattern", [MeanKey(density=0.3), MeanKey(tau=0.7)], ids=["density", "tau"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_onnxruntime_selects_the_same(pattern, opset, dtype):
    ort = pytest.importorskip("onnxruntime")
    grid = Grid(4, 2, 150, 200, pattern.q_block, pattern.k_block, causal=True)
    query, key = (x.astype(dtype) for x in clustered(grid, batch=2))
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    setting = Setting(opset, group=2, causal=True, element_type=element_type)
    model = selection_model(pattern, setting)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    indices, count = session.run(None, {"query": query, "key": key})
    kept = grid_from_selection(indices, count, grid.k_blocks)
    wanted = grid_from_selection(*run_selection(model, query, key), grid.k_blocks)
    assert (kept == wanted).all()


# Options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Window(size=-1), ["window", "size=-1", "at least 0"]),
        (lambda: Window(q_block=0), ["window", "q_block=0", "at least 1"]),
        (lambda: Window(size=2.5), ["window", "size=2.5", "an integer"]),
        (lambda: Diagonal(k_block=True), ["diagonal", "k_block=True", "an integer"]),
        (lambda: DenseRegions(region=0), ["dense_regions", "region=0", "at least 1"]),
        (lambda: DenseRegions(neighbours=-2), ["dense_regions", "neighbours=-2"]),
        (lambda: MeanKey(), ["mean_key", "density=None and tau=None", "exactly one"]),
        (lambda: MeanKey(0.5, 0.5), ["mean_key", "density=0.5 and tau=0.5", "exactly one"]),
        (lambda: MeanKey(density=1.5), ["mean_key", "density=1.5", "at most 1"]),
        (lambda: MeanKey(density=(0.5, 0)), ["mean_key", "density=0 ", "above 0"]),
        (lambda: MeanKey(density=()), ["mean_key", "density=()", "one per query head"]),
        (lambda: MeanKey(tau=float("nan")), ["mean_key", "tau=nan", "at most 1"]),
        (lambda: MeanKey(0.5, k_block=0), ["mean_key", "k_block=0", "at least 1"]),
    ],
)
def test_an_impossible_option_is_refused_in_words(make, words):
    with pytest.raises(SparsifyError) as error:
        make()
    assert all(word in str(error.value) for word in words), str(error.value)


# Drawings -----------------------------------------------------------------------------------------


def test_wide_grids_are_reduced():
    mask = np.zeros((3, 130), dtype=bool)
    mask[1, 129] = True
    assert draw_text(mask) == ("." * 44 + "\n") + ("." * 43 + "#\n") + ("." * 44 + "\n")


def test_svg_is_well_formed_and_escaped():
    mask = np.array([[[1, 1, 0], [0, 1, 1]], [[1, 0, 1], [0, 0, 0]]], dtype=bool)
    svg = draw_svg(mask, 'a <b> & "c"')
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter() if element.text and element.text.strip()]
    assert texts[:2] == ['a <b> & "c"'] * 2
    assert texts[2:] == ["head 0 keeps 66.7%", "head 1 keeps 33.3%"]
    assert "M0 0h2v1h-2z" in svg
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_example_of_a_dynamic_pattern_is_repeatable():
    first, second = (example_grid(MeanKey(density=0.25), 512, heads=3) for _ in range(2))
    assert first.shape == (3, 8, 32)
    assert first.dtype == bool
    assert (first == second).all()
    assert first.mean() == 0.25


# The sample ---------------------------------------------------------------------------------------


def load_sample():
    spec = importlib.util.spec_from_file_location("strided", SAMPLE / "sparsify_strided.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["strided"] = module
    spec.loader.exec_module(module)
    return module


def test_sample_keeps_the_contract_and_stays_small():
    check_pattern(load_sample().Strided())
    check_pattern(load_sample().Strided(stride=3, k_block=16))
    assert len((SAMPLE / "sparsify_strided.py").read_text().splitlines()) <= 50
