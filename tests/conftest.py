"""Fixtures that several test files share."""

import json
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from sparsify.testing import Variant
from sparsify.testing.operator import case_model, session
from sparsify.testing.operator_cases import make_case
from sparsify_hw.calibration import Calibration, cache_path
from sparsify_hw.cpu import RATES
from sparsify_hw.host import available
from sparsify_ops.kernels import CPU
from sparsify_ops.sparse_attention import SPARSE_ATTENTION


@pytest.fixture(scope="session", autouse=True)
def host_rates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixed rates in a cache of the tests' own, so that no test depends on the clock."""
    rates = dict.fromkeys(RATES, 1e-10) | {"mac": 2e-11, "panel": 3e-7, "select_call": 3e-5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        path = cache_path(available())
        path.parent.mkdir(parents=True)
        known = Calibration("the tests", rates, 1e-6, 1e-6, 1.0, 5e-11, 2e-11)
        path.write_text(json.dumps(asdict(known)), encoding="utf-8")
        yield


@pytest.fixture(params=["avx512", "avx2", "v2", "portable"])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make new sessions use one level of instructions; skip where the machine lacks it."""
    monkeypatch.setenv("SPARSIFY_CPU", request.param)
    try:
        session(case_model(SPARSE_ATTENTION, make_case("dense", set()), Variant()), CPU.library())
    except Exception as error:
        if "does not have" in str(error) or "must be one of" in str(error):
            pytest.skip(f"no {request.param} here")
        raise
    return str(request.param)
