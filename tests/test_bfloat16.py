"""Arithmetic in bfloat16, which a session may ask for."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from sparsify.runtime import BFLOAT16_OPTION
from sparsify.testing import Variant, check_operator
from sparsify.testing.operator import case_model, run_case, session
from sparsify.testing.operator_cases import Case, Sizes, make_case, operator_cases
from sparsify_ops.kernels import CPU
from sparsify_ops.sparse_attention import SPARSE_ATTENTION

pytestmark = pytest.mark.skipif(CPU.unavailable() is not None, reason="no native library is built")

CPUINFO = Path("/proc/cpuinfo")
WORDS = CPUINFO.read_text(encoding="utf-8").split() if CPUINFO.exists() else []
MULTIPLIES = {"avx512_bf16", "AuthenticAMD"} <= set(WORDS)
able = pytest.mark.skipif(not MULTIPLIES, reason="this processor is not faster in bfloat16")

ASKED = Variant(bfloat16=True)


def run(case: Case, variant: Variant) -> npt.NDArray[np.float32]:
    """Give the kernel's result."""
    return run_case(SPARSE_ATTENTION, case, variant, CPU.library())


def rounded(x: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """To the nearest bfloat16, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def truth(case: Case) -> npt.NDArray[np.float64]:
    """Dense attention of rounded inputs in float64; the scale and log2(e) are part of Q there."""
    factor = np.float32(case.attributes["scale"]) * np.float32(np.log2(np.e))
    q = rounded(np.asarray(case.inputs["Q"], np.float32) * factor).astype(np.float64)
    k, v = (rounded(case.inputs[name]).astype(np.float64) for name in ("K", "V"))
    group = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, axis=1).swapaxes(-1, -2)
    weights = np.exp2(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    result: npt.NDArray[np.float64] = weights @ np.repeat(v, group, axis=1)
    return result


@able
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    shape=st.builds(
        Sizes,
        batch=st.integers(1, 2),
        heads=st.sampled_from([2, 4]),
        kv_heads=st.sampled_from([1, 2]),
        rows=st.integers(9, 300),
        keys=st.integers(1, 300),
        dim=st.integers(1, 80),
        value_dim=st.integers(1, 80),
    )
)
def test_only_inputs_and_weights_are_rounded(shape: Sizes) -> None:
    """A weight is off by at most 2^-9 of itself, and so is an average by that of the largest."""
    case = make_case("dense", set(), shape)
    largest = float(np.abs(case.inputs["V"]).max())
    np.testing.assert_allclose(run(case, ASKED), truth(case), rtol=0, atol=largest * 2**-8)


@able
def test_conformance() -> None:
    cases = operator_cases()
    check_operator(SPARSE_ATTENTION, CPU.library(), variant=ASKED, cases=cases)
    for dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        variant = Variant(dtype=dtype, bfloat16=True)
        check_operator(SPARSE_ATTENTION, CPU.library(), variant=variant, cases=cases[::9])


def test_what_the_processor_lacks_is_left() -> None:
    """Float32 sessions stay as they are, and so do all where bfloat16 cannot be multiplied."""
    case = make_case("dense", set(), Sizes(1, 2, 2, 70, 70, 64, 64))
    plain, asked = run(case, Variant()), run(case, ASKED)
    assert np.array_equal(plain, asked) is not MULTIPLIES
    np.testing.assert_array_equal(run(case, Variant()), plain)


def test_a_lower_level_multiplies_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A level that is asked for stays that level."""
    if not MULTIPLIES:
        pytest.skip("this processor is not faster in bfloat16")
    monkeypatch.setenv("SPARSIFY_CPU", "avx2")
    case = make_case("dense", set(), Sizes(1, 2, 2, 70, 70, 64, 64))
    np.testing.assert_array_equal(run(case, Variant()), run(case, ASKED))


def test_another_value_of_the_option_is_an_error() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(BFLOAT16_OPTION, "yes")
    with pytest.raises(Exception, match=rf"session option {BFLOAT16_OPTION} must be 0 or 1"):
        options.register_custom_ops_library(str(CPU.library()))


def test_zero_asks_for_nothing() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(BFLOAT16_OPTION, "0")
    options.register_custom_ops_library(str(CPU.library()))
    case = make_case("dense", set(), Sizes(1, 2, 2, 70, 70, 64, 64))
    model = case_model(SPARSE_ATTENTION, case, Variant())
    active = ort.InferenceSession(model.SerializeToString(), options)
    wanted = session(model, CPU.library()).run(None, dict(case.inputs))[0]
    np.testing.assert_array_equal(active.run(None, dict(case.inputs))[0], wanted)
