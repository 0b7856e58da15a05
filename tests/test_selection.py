"""From a pattern to block ids and counts: as arrays, as constants, and at run time."""

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from sparsify.builder import Builder
from sparsify.errors import SparsifyError
from sparsify.example import Setting, clustered, run_selection, selection_model
from sparsify.pattern import Grid, SiteInputs
from sparsify.selection import (
    GraphValue,
    blocks_of,
    emit_selection,
    emit_selection_from_grid,
    grid_from_selection,
    grid_of,
    permitted,
    selection_from_grid,
)
from sparsify.testing import check_pattern

OPSETS = [12, 17, onnx.defs.onnx_opset_version()]

quick = settings(derandomize=True, deadline=None, max_examples=50)


@dataclass(frozen=True)
class Rule:
    """A rule given as a function, in tiny blocks."""

    function: object
    q_block: int = 4
    k_block: int = 2

    def rule(self, blocks):
        return self.function(blocks)


@dataclass(frozen=True)
class Keep:
    """A grid given as a function, in tiny blocks."""

    function: object
    q_block: int = 4
    k_block: int = 2

    def keep(self, grid):
        return self.function(grid)


def diagonal(blocks):
    return (blocks.k_first <= blocks.q_last) & (blocks.k_last >= blocks.q_first)


def every_third(grid):
    return (np.arange(grid.k_blocks) % 3 == 0) | np.zeros((1, grid.q_blocks, 1), dtype=bool)


def per_head(grid):
    columns = np.arange(grid.k_blocks) <= np.arange(grid.heads)[:, None]
    return np.broadcast_to(columns[:, None], (grid.heads, grid.q_blocks, grid.k_blocks))


def tiny(q_len, k_len, heads=1, **more):
    return Grid(heads, heads, q_len, k_len, 4, 2, **more)


def select(pattern, grid, setting):
    """Find what the emitted nodes keep, [heads or 1, q_blocks, k_blocks], and the counts."""
    indices, count = run_selection(selection_model(pattern, setting), *clustered(grid))
    return grid_from_selection(indices, count, grid.k_blocks)[0], count[0]


# Values of a graph --------------------------------------------------------------------------------

EXPRESSIONS = {
    "arithmetic": lambda x, y: (x + 3 - y) * y - 2,
    "number first": lambda x, y: 7 - x + (2 * y) + (1 + x) - (3 - y),
    "numpy number first": lambda x, y: np.int64(7) - x,
    "floor division": lambda x, y: x // 3 + y // 5,
    "floor division by a negative number": lambda x, y: x // -3,
    "floor division by a tensor": lambda x, y: x // (y * y + 1),
    "comparisons": lambda x, y: ((x < 2) & (y <= 3)) | ((x > y) & (y >= -1)),
    "numpy number compared": lambda x, y: (np.int64(2) < x) | (y >= np.int64(3)),
}


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_operators_mean_the_same_in_a_graph(name, opset):
    x, y = np.arange(-9, 10)[:, None], np.arange(-6, 7)[None, :]
    builder = Builder(opset, "")
    result = EXPRESSIONS[name](GraphValue(builder, "x"), GraphValue(builder, "y"))
    wanted = EXPRESSIONS[name](x, y)
    assert (run(builder, [result.name], x=x, y=y)[0] == wanted).all()


def run(builder, outputs, **feeds):
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in feeds.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(builder.nodes, "test", inputs, results)
    opset = helper.make_opsetid("", builder.opset)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return ReferenceEvaluator(model).run(None, feeds)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda b: b.q_first == b.k_first, "=="),
        (lambda b: b.q_first != b.k_first, "!="),
        (lambda b: b.q_first if b.q_first < b.k_first else b.k_first, "if"),
        (lambda b: (b.q_first < 3) and (b.k_first < 3), "and"),
        (lambda b: b.q_first < np.arange(3), "ndarray"),
        (lambda b: b.q_first < 1.5, "Rule: .* float"),
        (lambda b: True, "Rule answered a bool"),
    ],
)
def test_what_a_graph_cannot_follow_is_an_error(rule, words):
    with pytest.raises(SparsifyError, match=words):
        selection_model(Rule(rule), Setting(17))


# Grids --------------------------------------------------------------------------------------------


@quick
@given(st.integers(1, 30), st.integers(1, 30), st.integers(-5, 30))
def test_permitted_blocks_are_those_of_the_grid(q_len, k_len, offset):
    grid = tiny(q_len, k_len, offset=offset, causal=True)
    assert (permitted(blocks_of(grid), offset) == grid.permitted()).all()


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (Rule(lambda b: b.k_first < 0), "Rule keeps no permitted block for query block 0"),
        (Rule(lambda b: b.k_first >= b.q_first + 99), "no permitted block"),
        (Rule(lambda b: b.k_first + b.q_first), "int64"),
        (Keep(lambda g: np.ones((g.q_blocks, g.k_blocks), bool)), r"bool \[3, 5\]"),
        (Keep(lambda g: np.ones((2, g.q_blocks, g.k_blocks), bool)), r"bool \[2, 3, 5\]"),
        (Keep(lambda g: np.eye(g.q_blocks, g.k_blocks)[None]), "float64"),
    ],
)
def test_what_is_no_grid_is_refused_in_words(pattern, words):
    with pytest.raises(SparsifyError, match=words):
        grid_of(pattern, tiny(10, 10, heads=3))


def test_blocks_after_the_queries_do_not_count_under_causality():
    last_column = Rule(lambda b: b.k_last >= b.k_length - 1)
    assert grid_of(last_column, tiny(12, 12)).sum() == 3
    with pytest.raises(SparsifyError, match="query block 0"):
        grid_of(last_column, tiny(12, 12, causal=True))


masks = hnp.arrays(bool, hnp.array_shapes(min_dims=3, max_dims=3, max_side=9))


@quick
@given(masks)
def test_a_grid_survives_its_selection(mask):
    indices, count = selection_from_grid(mask)
    assert indices.dtype == count.dtype == np.int32
    assert indices.shape[:3] == count.shape == (1, *mask.shape[:2])
    mask = mask | ~mask.any(axis=-1, keepdims=True)  # keeping nothing means keeping everything
    assert (grid_from_selection(indices, count, mask.shape[-1])[0] == mask).all()


@quick
@given(masks, st.sampled_from(OPSETS))
def test_nodes_select_what_arrays_select(mask, opset):
    builder = Builder(opset, "")
    selection = emit_selection_from_grid(builder, "mask")
    results = run(builder, [selection.block_indices, selection.block_count], mask=mask)
    for result, wanted in zip(results, selection_from_grid(mask), strict=True):
        assert result.dtype == np.int32
        assert (result == wanted).all()


# Every kind of pattern at a site ------------------------------------------------------------------


@quick
@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(0, 9),
    st.booleans(),
    st.sampled_from(OPSETS),
)
def test_a_rule_runs_at_every_length(q_len, k_len, offset, causal, opset):
    wide = Rule(lambda b: (b.k_first <= b.q_last) & (b.k_last + 30 >= b.q_first) | (b.k_first < 1))
    grid = tiny(q_len, k_len, offset=offset, causal=causal)
    kept, _ = select(wide, grid, Setting(opset, offset=offset, causal=causal))
    assert (kept == grid_of(wide, grid) & grid.permitted()).all()


@pytest.mark.parametrize("axis", ["q_first", "k_first"])
def test_a_rule_may_answer_one_row_or_column(axis):
    first = Rule(lambda b: getattr(b, axis) < 4)
    kept, count = select(first, tiny(9, 9), Setting(17))
    assert kept.shape == (1, 3, 5)
    assert count.tolist() == ([[5, -1, -1]] if axis == "q_first" else [[2, 2, 2]])


def test_an_offset_may_be_known_at_run_time_only():
    builder = Builder(17, "")
    inputs = SiteInputs("query", "key", "key", 1.0, 1, True, TensorProto.FLOAT)
    lengths = {"q_length": None, "k_length": None, "max_length": None}
    selection = emit_selection(Rule(diagonal), builder, inputs, **lengths, offset="start")
    query, key = np.zeros((1, 1, 5, 8), np.float32), np.zeros((1, 1, 20, 8), np.float32)
    names = [selection.block_indices, selection.block_count]
    indices, count = run(builder, names, query=query, key=key, start=np.array(15))
    grid = tiny(5, 20, offset=15, causal=True)
    wanted = grid_of(Rule(diagonal), grid) & grid.permitted()
    assert (grid_from_selection(indices, count, 10)[0] == wanted).all()
    with pytest.raises(SparsifyError, match="only known at run time"):
        emit_selection(Keep(every_third), builder, inputs, **lengths, offset="start")


@pytest.mark.parametrize("causal", [False, True])
def test_a_grid_of_fixed_length_is_two_constants(causal):
    setting = Setting(17, q_length=10, k_length=13, heads=3, causal=causal)
    model = selection_model(Keep(per_head), setting)
    kinds = [node.op_type for node in model.graph.node]
    assert sorted(kinds) == ["Constant", "Constant", "Identity", "Identity"]
    grid = tiny(10, 13, heads=3, causal=causal)
    kept, _ = select(Keep(per_head), grid, setting)
    assert (kept == per_head(grid) & grid.permitted()).all()


@quick
@given(st.integers(1, 24), st.integers(1, 24), st.booleans(), st.sampled_from(OPSETS))
def test_a_grid_of_the_longest_length_is_sliced(q_len, k_len, causal, opset):
    grid = tiny(q_len, k_len, heads=3, causal=causal)
    longest = tiny(24, 24, heads=3, causal=causal)
    kept, count = select(
        Keep(per_head), grid, Setting(opset, heads=3, causal=causal, max_length=24)
    )
    wanted = per_head(longest)[:, : grid.q_blocks, : grid.k_blocks] & grid.permitted()
    assert (kept == wanted).all()
    assert (count > 0).all()


def test_a_row_that_slicing_empties_keeps_every_block():
    last = Keep(lambda g: np.arange(g.k_blocks) + 1 == np.full((1, g.q_blocks, 1), g.k_blocks))
    _, count = select(last, tiny(8, 20), Setting(17, max_length=24))
    assert count.tolist() == [[-1, -1]]
    _, count = select(last, tiny(8, 24), Setting(17, max_length=24))
    assert count.tolist() == [[1, 1]]


@pytest.mark.parametrize("lengths", [(25, 24), (24, 25), (60, 60)])
def test_longer_inputs_keep_every_block(lengths):
    grid = tiny(*lengths, heads=3)
    kept, count = select(Keep(per_head), grid, Setting(17, heads=3, max_length=24))
    assert kept.shape == (3, grid.q_blocks, grid.k_blocks)
    assert (count == -1).all()


def test_a_grid_needs_a_length():
    with pytest.raises(SparsifyError, match=r"Keep .* --max-length"):
        selection_model(Keep(every_third), Setting(17))


def test_unknown_heads_allow_only_one_grid_for_all():
    lengths = {"q_length": 8, "k_length": 8}
    selection_model(Keep(every_third), Setting(17, **lengths))
    with pytest.raises(SparsifyError, match="number of heads"):
        selection_model(Keep(per_head), Setting(17, **lengths))


@pytest.mark.parametrize("opset", [12, 17, 21])
def test_onnxruntime_selects_the_same(opset):
    ort = pytest.importorskip("onnxruntime")
    grid = tiny(30, 41, heads=3, causal=True, offset=11)
    shared = {"causal": True, "offset": 11, "heads": 3}
    for pattern in (Rule(diagonal), Keep(per_head)):
        model = selection_model(pattern, Setting(opset, max_length=64, **shared))
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        feeds = dict(zip(("query", "key"), clustered(grid), strict=True))
        for result, wanted in zip(
            session.run(None, feeds), run_selection(model, *feeds.values()), strict=True
        ):
            assert (result == wanted).all()


# The conformance check finds what is wrong --------------------------------------------------------


@dataclass(frozen=True)
class Emits:
    """A dynamic pattern that answers constants."""

    indices: list
    count: list
    dtype: type = np.int32
    q_block: int = 64
    k_block: int = 64

    def emit(self, builder, inputs):
        from sparsify.pattern import Selection

        names = (builder.constant(value, self.dtype) for value in (self.indices, self.count))
        return Selection(*names)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (Rule(diagonal, q_block=0), "q_block=0"),
        (Rule(diagonal, k_block=2.0), "k_block=2.0"),
        (object(), "q_block=None"),
        (type("Both", (Rule, Keep), {})(diagonal), r"\['rule', 'keep'\]"),
        (Emits([[[[0]]]], [[[1]]], np.int64), "int64"),
        (Emits([[[0]]], [[[1]]]), r"block_indices \[1, 1, 1\]"),
        (Emits([[[[-1]]]], [[[0]]]), "counts 0 blocks"),
        (Emits([[[[3]]]], [[[1]]]), "does not exist"),
        (Emits([[[[0, 0]]]], [[[1]]]), "pad"),
    ],
)
def test_check_pattern_says_what_is_wrong(pattern, words):
    with pytest.raises(AssertionError, match=words):
        check_pattern(pattern)


def test_check_pattern_compares_graph_and_array():
    forked = Rule(lambda b: diagonal(b) if isinstance(b.q_first, GraphValue) else b.k_first >= 0)
    with pytest.raises(AssertionError, match="other blocks in a graph"):
        check_pattern(forked)
    check_pattern(Rule(lambda b: diagonal(b) | (b.k_first < 1)))
    check_pattern(Keep(every_third))
