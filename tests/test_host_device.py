"""The host device: predictions that order as time does, and an honest "keep it dense"."""

from dataclasses import replace

import pytest
from graphs import Form, feeds_of, model_of, save

from sparsify import find_sites, load
from sparsify.plan import Request, make_plan
from sparsify.spec import parse_spec
from sparsify.workload import SelectorWork, Workload, at_density
from sparsify_hw.host import HOST, Rates

LONG = Workload(1, 6, 6, 4096, 4096, 64, 64)


@pytest.fixture
def rates(monkeypatch):
    """Fixed rates, so that no test depends on the clock."""
    monkeypatch.setattr("sparsify_hw.host.measured", lambda: Rates(2e-11, 1e-6))


def test_dense_time_is_multiply_adds_at_the_rate(rates):
    macs = 6 * 4096 * 4096 * (64 + 64)
    panels = 6 * 64
    cost = HOST.cost(LONG)
    assert cost.seconds == pytest.approx(macs * 2e-11 + panels * 1e-6)
    assert cost.joules > 0


def test_less_density_is_less_time_and_residual_and_selection_cost(rates):
    sparse = at_density(replace(LONG, k_block=16), 0.2)
    chosen = replace(sparse, selector=SelectorWork(10**8, 10**6, 10**5, 2))
    least = HOST.cost(sparse).seconds
    assert least < HOST.cost(replace(sparse, residual="mean")).seconds
    assert least < HOST.cost(chosen).seconds < HOST.cost(LONG).seconds


def test_a_pattern_that_does_not_pay_is_kept_dense_and_says_so(rates, tmp_path):
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
