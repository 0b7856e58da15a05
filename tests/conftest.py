"""Fixtures that several test files share."""

import pytest

from sparsify.testing import Variant
from sparsify.testing.operator import case_model, session
from sparsify.testing.operator_cases import make_case
from sparsify_ops.kernels import CPU
from sparsify_ops.sparse_attention import SPARSE_ATTENTION


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
