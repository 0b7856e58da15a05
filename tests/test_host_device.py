"""The host device: predictions that order as time does, and an honest "keep it dense"."""

import json
from dataclasses import replace

import numpy as np
import pytest
from graphs import Form, feeds_of, model_of, save

from sparsify import find_sites, load
from sparsify.plan import Request, make_plan
from sparsify.spec import parse_spec
from sparsify.testing import check_device
from sparsify.workload import MatrixWork, SelectorWork, Workload, at_density, choosing
from sparsify_hw.calibration import cache_path, calibrated
from sparsify_hw.cpu import RATES, Cores, Rates, attention, choice
from sparsify_hw.fit import non_negative, probes, rates_of
from sparsify_hw.host import HOST, Host
from sparsify_hw.probe import Selecting, seconds_of

LONG = Workload(1, 6, 6, 4096, 4096, 64, 64)


def test_the_rates_of_a_core_are_found_again_from_the_times_they_give():
    """Times made with known rates; those that nothing measures may not come back."""
    rates = dict.fromkeys(RATES, 1e-9) | {"mac": 2e-11, "call": 1e-5, "panel": 1e-7}
    known = core(rates)
    timed = probes()
    seconds = [
        choice(known, probe.work)
        if isinstance(probe, Selecting)
        else attention(known, probe).seconds
        for probe in timed
    ]
    found = core(rates_of(timed, seconds))
    sparse = at_density(replace(LONG, k_block=16), 0.2)
    chosen = replace(sparse, selector=choosing(sparse))
    for work in (LONG, sparse, chosen, replace(LONG, residual="iso")):
        assert attention(found, work).seconds == pytest.approx(
            attention(known, work).seconds, rel=0.02
        )


def core(rates: Rates) -> Cores:
    """One core that loses nothing."""
    return Cores(rates, 1, 0.0, 0.0, 1.0, 0.0, 0.0)


def test_least_squares_without_negative_numbers():
    matrix = np.array([[1.0, 1.0, 0.0], [1.0, 2.0, 0.0], [1.0, 3.0, 0.0]])
    assert non_negative(matrix, np.array([3.0, 5.0, 7.0])) == pytest.approx([1, 2, 0])
    assert non_negative(matrix, np.array([3.0, 2.0, 1.0]))[1] == 0


def test_less_density_is_less_time_and_residual_and_selection_cost():
    sparse = at_density(replace(LONG, k_block=16), 0.2)
    chosen = replace(sparse, selector=SelectorWork(10**8, 10**6, 10**5, 2, elements=10**6))
    least = HOST.cost(sparse).seconds
    assert least < HOST.cost(replace(sparse, residual="mean")).seconds
    assert least < HOST.cost(chosen).seconds < HOST.cost(LONG).seconds


def test_the_host_keeps_the_contract():
    for threads in (1, 2, 4):
        check_device(Host(threads=threads))


def test_threads_share_the_work_and_wait_for_the_last():
    one, two = Host(threads=1).cost(LONG), Host(threads=2).cost(LONG)
    assert one.parts.get("imbalance", 0) == 0
    assert 0.5 * one.seconds < two.seconds < 0.55 * one.seconds
    odd = replace(LONG, heads=1, kv_heads=1, kept=((64, 63), (4096, 1)))
    assert Host(threads=4).cost(odd).parts["imbalance"] > 0


def test_a_spoiled_cache_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr("sparsify_hw.calibration.user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr("sparsify_hw.probe.seconds_of", lambda probe, threads: 1e-3)
    single = '"fork": 0, "choice_fork": 0, "contention": 1, "far_byte": 1, "matrix_mac": 1'
    for spoiled in (
        "",
        "{}",
        "[]",
        f'{{"machine": "", "rates": 1, {single}}}',
        f'{{"machine": "", "rates": {{}}, {single}}}',
    ):
        path = cache_path(2)
        path.parent.mkdir(exist_ok=True)
        path.write_text(spoiled, encoding="utf-8")
        assert set(calibrated(2).rates) == set(RATES)
        assert json.loads(path.read_text(encoding="utf-8"))["contention"] >= 1


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr("sparsify_hw.calibration.user_cache_path", lambda _: tmp_path / "file")
    monkeypatch.setattr("sparsify_hw.probe.seconds_of", lambda probe, threads: 1e-3)
    assert set(calibrated(2).rates) == set(RATES)
    assert "not kept" in caplog.text


@pytest.mark.parametrize(
    "probe",
    [
        replace(LONG, q_length=70, k_length=70, heads=2, kv_heads=2),
        at_density(
            Workload(1, 2, 2, 256, 256, 32, 32, k_block=16, residual="iso", residual_block=16), 0.3
        ),
        at_density(Workload(1, 4, 2, 256, 256, 32, 64, k_block=1, residual="mean"), 0.2),
        Workload(1, 2, 2, 128, 128, 32, 32, "float16"),
        Workload(1, 2, 2, 1, 128, 32, 32, bias_heads=2),
        Selecting(256, 32, 2),
        MatrixWork(64**3, 1),
    ],
)
def test_probes_run(probe, monkeypatch):
    monkeypatch.setattr("sparsify_hw.probe._RUNS", (1, 1))
    assert seconds_of(probe, 1) > 0


def test_a_pattern_that_does_not_pay_is_kept_dense_and_says_so(tmp_path):
    """At a fixed length of 24 tokens the choosing costs more than it saves."""
    form = Form()
    model = model_of(form)
    for value in model.graph.input:
        shape = feeds_of(form)[value.name].shape
        for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            dim.dim_value = size
    loaded = load(save(model, tmp_path))
    request = Request((parse_spec("mean_key:density=0.2"),))
    (decision,) = make_plan(loaded, find_sites(loaded), request, HOST).decisions
    assert decision.grade == "exact"
    assert decision.pattern is None
    assert "kept dense: on host" in decision.reason
