"""The benchmark of the operator alone: what it compares computes the same. No times are judged."""

import numpy as np
import pytest

from benchmarks import peak
from benchmarks.cases import RIVALS, Case, Limit, rivals
from benchmarks.groups import GROUPS
from benchmarks.libraries import LIBRARIES, Unavailable
from benchmarks.measured import Measured
from benchmarks.problem import Problem, tokens
from benchmarks.rivals import ENTRIES
from sparsify.timing import Timing

DENSE = tokens(24, 16)
CAUSAL = tokens(24, 16, causal=True)
NEAR = tokens(24, 16, causal=True, window=5)


def rows_and_columns(problem: Problem):
    return np.arange(problem.queries)[:, None], np.arange(problem.keys)[None]


@pytest.mark.parametrize("window", [None, 0, 5, 23, 100])
def test_the_density_is_the_share_of_permitted_scores(window):
    problem = tokens(24, 16, causal=True, window=window)
    row, column = rows_and_columns(problem)
    seen = (column <= row) & (row - column <= (24 if window is None else window))
    assert problem.permitted == pytest.approx(seen.mean())


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (DENSE, "fused"),
        (DENSE, "unfused"),
        (DENSE, "ai.onnx Attention"),
        (DENSE, "torch SDPA"),
        (DENSE, "OpenVINO"),
        (CAUSAL, "fused alike"),
        (CAUSAL, "GroupQueryAttention"),
        (CAUSAL, "ai.onnx Attention"),
        (CAUSAL, "torch SDPA"),
        (CAUSAL, "OpenVINO"),
        (NEAR, "GroupQueryAttention"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.what,
)
def test_a_rival_computes_what_ours_does(problem, name):
    try:
        rival = (
            LIBRARIES[name](problem, 1)
            if name in LIBRARIES
            else ENTRIES[name](problem).running(problem, 1)
        )
    except Unavailable as error:
        pytest.skip(f"{name}: {error}")
    ours = ENTRIES["ours"](problem).running(problem, 1)
    assert rival.same
    np.testing.assert_allclose(ours.output(), rival.output(), rtol=1e-4, atol=1e-5)


def test_every_rival_has_a_row_and_one_that_is_absent_says_why():
    case = Case(DENSE, Limit(float("inf"), ("fused", "OpenVINO")))
    times = {"fused": Timing("fused", (2.0, 2.0)), "ours": Timing("ours", (1.0, 1.0))}
    table = GROUPS["rivals"].table([Measured(case, times, 1.0, {"OpenVINO": "not installed"})])
    assert [row[-3:] for row in table.rows] == [
        ("fused", "2.00 s", "0.500 (0.500-0.500)"),
        ("OpenVINO", "not installed", "-"),
    ]
    assert table.columns[-3:] == ("rival", "its time", "ours / rival")


def test_the_rivals_have_no_targets():
    found = list(rivals())
    assert {case.problem.queries for case in found} == set(RIVALS)
    assert not any(case.limit.wanted for case in found)


def test_the_loop_that_reads_memory_reads_all_of_it(tmp_path):
    library = peak.compiled("read_memory.c", (), tmp_path)
    if library is None:
        pytest.skip("no C compiler")
    words = np.arange(1024, dtype=np.uint64)
    assert peak.bytes_per_second(library, 2, words.nbytes) > 0
    assert library.read_memory(words.ctypes.data, words.size) == words.sum()
