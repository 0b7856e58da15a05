"""A handful of queries on many keys, as a decoder reads its cache: lanes, merged heads, slices."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from sparsify.testing import Variant, check_operator
from sparsify.testing.operator import case_model, session
from sparsify.testing.operator_cases import FEATURES, REJECTED, Case, Sizes, make_case
from sparsify_ops.kernels import CPU
from sparsify_ops.sparse_attention import SPARSE_ATTENTION

pytestmark = pytest.mark.skipif(
    CPU.unavailable() is not None, reason=CPU.unavailable() or "the native library is here"
)

GROUPS = ((1, 1), (4, 1), (8, 1), (8, 2), (6, 3), (17, 1))
features = st.sets(st.sampled_from(FEATURES)).filter(lambda chosen: not chosen >= REJECTED)
sizes = st.builds(
    lambda batch, heads, rows, keys, dims: Sizes(batch, *heads, rows, keys, *dims),
    st.integers(1, 2),
    st.sampled_from(GROUPS),
    st.integers(1, 18),
    st.integers(1, 300),
    st.sampled_from(((8, 8), (64, 64), (33, 16), (7, 5), (16, 40), (1, 3))),
)


def run(case: Case, threads: int = 1) -> npt.NDArray[np.float32]:
    """Give the kernel's result."""
    model = case_model(SPARSE_ATTENTION, case, Variant())
    result = session(model, CPU.library(), threads).run(None, dict(case.inputs))[0]
    return np.asarray(result)


def dense(case: Case) -> npt.NDArray[np.float64]:
    """Give softmax(scale * Q K^T) V in float64."""
    q, k, v = (case.inputs[name].astype(np.float64) for name in "QKV")
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = float(case.attributes["scale"]) * q @ k.swapaxes(2, 3)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(shape=sizes, chosen=features, seed=st.integers(0, 1000))
def test_any_features(shape: Sizes, chosen: set[str], seed: int) -> None:
    case = make_case(f"few-{seed}", chosen, shape)
    check_operator(SPARSE_ATTENTION, CPU.library(), variant=Variant(), cases=(case,))


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_half_types_at_every_level(dtype: int, level: str) -> None:
    shapes = [Sizes(1, *group, 3, 90, *dims) for group in GROUPS for dims in ((64, 64), (33, 16))]
    cases = tuple(make_case(f"half-{i}", {"attn_mask"}, each) for i, each in enumerate(shapes))
    check_operator(SPARSE_ATTENTION, CPU.library(), variant=Variant(dtype=dtype), cases=cases)


@pytest.mark.parametrize("heads", GROUPS)
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_many_keys_are_cut_and_merged(heads: tuple[int, int], rows: int) -> None:
    case = make_case(f"long {heads} {rows}", set(), Sizes(1, *heads, rows, 5003, 24, 20))
    np.testing.assert_allclose(run(case), dense(case), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "chosen",
    [{"causal", "query_offset"}, {"window"}, {"sinks", "attn_bias"}, {"selection"}, {"softcap"},
     {"key_lengths"}, {"attn_mask"}],
    ids=lambda chosen: "+".join(sorted(chosen)),
)  # fmt: skip
def test_features_survive_the_cut(chosen: set[str]) -> None:
    case = make_case("cut " + "+".join(sorted(chosen)), chosen, Sizes(1, 4, 1, 2, 4500, 16, 16))
    check_operator(SPARSE_ATTENTION, CPU.library(), variant=Variant(), cases=(case,))


def test_threads_change_no_bit_of_a_cut_row() -> None:
    case = make_case("cut, threads", {"sinks"}, Sizes(1, 2, 1, 1, 9000, 64, 64))
    np.testing.assert_array_equal(run(case, 1), run(case, 3))


def test_a_row_without_keys_is_zero_and_nan_spreads_no_further() -> None:
    case = make_case("cut, nan", set(), Sizes(1, 3, 1, 2, 4100, 8, 8))
    mask = np.ones((1, 1, 2, 4100), np.bool_)
    mask[..., 1, :] = False
    case.inputs["Q"][0, 1, 0] = np.nan
    found = run(Case(case.name, {**case.inputs, "attn_mask": mask}, case.attributes, case.uses))
    assert not found[:, :, 1].any()
    assert np.isnan(found[0, 1, 0]).all()
    assert not np.isnan(found[0, [0, 2], 0]).any()
