"""The benchmark of the operator alone: what it compares computes the same. No times are judged."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import peak, plot, record, selectors
from benchmarks.cases import RIVALS, Case, Limit, rivals
from benchmarks.document import Table
from benchmarks.groups import GROUPS
from benchmarks.libraries import LIBRARIES, Unavailable
from benchmarks.measured import Measured
from benchmarks.paired import session
from benchmarks.problem import Blocks, Problem, qkv, tokens
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


def sparse_row(length: int, density: float, seconds: float) -> Measured:
    case = Case(tokens(length, blocks=Blocks(density, 64)), Limit(0.5))
    times = {"fused": Timing("fused", (1.0, 1.0)), "ours": Timing("ours", (seconds, seconds))}
    return Measured(case, times, density)


def test_the_record_holds_samples_limits_and_the_machine(tmp_path):
    file = tmp_path / "new" / "found.json"
    free = Measured(Case(DENSE, Limit(float("inf"))), sparse_row(1024, 0.5, 0.25).times, 1.0)
    rows = {"sparse": [sparse_row(1024, 0.5, 0.25)], "rivals": [free]}
    record.write_json(file, 2, rows, {"peak": Table("", ("S", "peak"), (("1", "2 GB/s"),))})
    found = json.loads(file.read_text())
    assert {"processor", "cpus", "versions", "command"} <= set(found["made"])
    assert found["tables"] == {"peak": [{"S": "1", "peak": "2 GB/s"}]}
    first, second = found["rows"]
    assert (first["group"], first["threads"]) == ("sparse", 2)
    assert first["problem"]["blocks"] == {"density": 0.5, "k_block": 64, "q_block": 64}
    assert first["seconds"] == {"fused": [1.0, 1.0], "ours": [0.25, 0.25]}
    assert (first["ratio"]["median"], first["limit"]["most"], first["met"]) == (0.25, 0.5, True)
    assert (second["limit"], second["met"]) == (None, None)


def test_the_plot_has_a_line_for_each_length(tmp_path):
    rows = [sparse_row(length, share, share) for length in (1024, 2048) for share in (0.5, 0.1)]
    assert plot.lines_of(rows) == {
        "S 1024": [(0.5, 2.0), (0.1, 10.0)],
        "S 2048": [(0.5, 2.0), (0.1, 10.0)],
    }
    plot.write_plot(tmp_path / "plot.svg", rows)
    drawn = ElementTree.parse(tmp_path / "plot.svg").getroot()
    names = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"S 1024", "S 2048", "1 / density", plot.TITLE} <= names


@pytest.mark.parametrize("mass", ["MeanKeyMass", "QuantizedMass"])
@pytest.mark.parametrize("choice", ["TopKBlocks", "TopPBlocks"])
def test_kernels_and_bodies_of_a_selector_select_the_same(mass, choice):
    problem = tokens(400, heads=2, kv_heads=2)
    model, given = selectors.Selector(mass, choice).model(problem), qkv(problem)
    feeds = {name: given[name] for name in "QK"}
    kernels, bodies = (
        session(model, threads=1, library=library).run(None, feeds) for library in (True, False)
    )
    for one, other in zip(kernels, bodies, strict=True):
        assert (one == other).mean() > 0.99  # what is nearly equal may fall either way
