"""The native CPU kernel against the operator's body, at every level of instructions."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from sparsify.testing import Variant, check_operator
from sparsify.testing.operator import case_model, run_case, session
from sparsify.testing.operator_cases import (
    FEATURES,
    REJECTED,
    Case,
    Sizes,
    make_case,
    operator_cases,
)
from sparsify_ops.kernels import CPU
from sparsify_ops.sparse_attention import FEATURES as ALL
from sparsify_ops.sparse_attention import SPARSE_ATTENTION

pytestmark = pytest.mark.skipif(
    CPU.unavailable() is not None, reason=CPU.unavailable() or "the native library is here"
)
CASES = operator_cases()


def check(cases: tuple[Case, ...], variant: Variant) -> None:
    """Give the kernel agrees with the body on all cases."""
    check_operator(SPARSE_ATTENTION, CPU.library(), variant=variant, cases=cases)


def run_kernel(case: Case) -> npt.NDArray[np.float32]:
    """Give the kernel's result."""
    return run_case(SPARSE_ATTENTION, case, Variant(), CPU.library())


def test_the_library_needs_no_body() -> None:
    """What is compared below really is the kernel."""
    case = make_case("no body", {"selection"})
    model = case_model(SPARSE_ATTENTION, case, Variant())
    del model.functions[:]
    result = session(model, CPU.library()).run(None, dict(case.inputs))[0]
    expected = run_case(SPARSE_ATTENTION, case, Variant())
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("variant", [Variant(), Variant(features=ALL)], ids=["missing", "neutral"])
def test_kernel_agrees_with_the_body(variant: Variant) -> None:
    check(CASES, variant)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_half_types_agree(dtype: int) -> None:
    check(CASES[::3], Variant(dtype=dtype))
    check(CASES[1::30], Variant(dtype=dtype, features=ALL))


@pytest.mark.parametrize("opset", [12, onnx.defs.onnx_opset_version()])
def test_the_opset_of_the_model_changes_nothing(opset: int) -> None:
    check(CASES[::40], Variant(opset=opset))


def test_every_level_agrees(level: str) -> None:
    check(CASES[1::3], Variant())
    check(CASES[2::12], Variant(dtype=TensorProto.FLOAT16))
    check(CASES[5::24], Variant(dtype=TensorProto.BFLOAT16))


def test_threads_change_no_bit() -> None:
    for case in CASES[::12]:
        model = case_model(SPARSE_ATTENTION, case, Variant())
        one, three = (
            session(model, CPU.library(), threads).run(None, dict(case.inputs))[0]
            for threads in (1, 3)
        )
        np.testing.assert_array_equal(one, three, err_msg=case.name)


def test_inputs_may_end_early() -> None:
    """Missing inputs at the end need no empty names."""
    for case in CASES[::20]:
        model = case_model(SPARSE_ATTENTION, case, Variant())
        node = next(node for node in model.graph.node if node.op_type == "SparseAttention")
        while not node.input[-1]:
            node.input.pop()
        result = session(model, CPU.library()).run(None, dict(case.inputs))[0]
        expected = run_case(SPARSE_ATTENTION, case, Variant())
        np.testing.assert_allclose(result, expected, rtol=0, atol=2e-5, err_msg=case.name)


def test_a_residual_has_no_effect_where_every_block_is_kept() -> None:
    for kind in (1, 2):
        case = make_case(f"every block {kind}", {"selection", "causal", "gathered", "iso"})
        counts = np.full_like(case.inputs["block_count"], -1)
        inputs = {**case.inputs, "block_count": counts}
        attributes = {**case.attributes, "residual": kind}
        case = replace(case, inputs=inputs, attributes=attributes)
        off = replace(case, attributes={**case.attributes, "residual": 0})
        found, expected = (run_kernel(each) for each in (case, off))
        np.testing.assert_array_equal(found, expected)


def test_nan_spreads_over_its_row_and_no_further() -> None:
    case = make_case("nan", set(), Sizes(1, 2, 2, 20, 20, 8, 8))
    case.inputs["Q"][0, 0, 3] = np.nan
    spoiled = np.isnan(run_kernel(case)).any(axis=-1)
    assert spoiled[0, 0, 3]
    assert spoiled.sum() == 1


def test_nan_bias_is_not_forbidding() -> None:
    case = make_case("nan bias", set(), Sizes(1, 2, 2, 20, 20, 8, 8))
    bias = np.full((20, 20), -np.inf, np.float32)
    bias[5, 7] = np.nan
    found = run_kernel(replace(case, inputs={**case.inputs, "attn_bias": bias}))
    assert np.isnan(found[0, :, 5]).all()
    assert not np.delete(found, 5, axis=2).any()


@pytest.mark.parametrize("rows", [1, 77], ids=["of keys", "of rows"])
def test_the_lowest_number_as_a_bias_forbids_no_group(rows: int, level: str) -> None:
    """Left-out keys whose bias is the lowest float weigh as much as kept keys with the same."""
    uses = {"selection", "attn_bias", "residual"}
    case = make_case("lowest", uses, Sizes(1, 2, 2, 77, 203, 16, 16))
    bias = np.random.default_rng(0).standard_normal((1, 1, rows, 203)).astype(np.float32)
    bias[..., -1, :] = np.finfo(np.float32).min
    bias[..., 0, :100] = np.finfo(np.float32).min
    case = replace(case, inputs={**case.inputs, "attn_bias": bias})
    check((case,), Variant())


def test_iso_with_softcap_is_rejected() -> None:
    case = make_case("iso", {"iso"})
    case = replace(case, attributes={**case.attributes, "softcap": 5.0, "residual": 2})
    with pytest.raises(Exception, match="softcap"):
        run_kernel(case)


heads = st.sampled_from([(1, 1), (2, 1), (3, 3), (4, 2), (5, 1)])
features = st.sets(st.sampled_from(FEATURES)).filter(lambda chosen: not chosen >= REJECTED)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    shape=st.builds(
        lambda batch, heads, rows, keys, dim, value_dim: Sizes(
            batch, *heads, rows, keys, dim, value_dim
        ),
        st.integers(1, 2),
        heads,
        st.integers(1, 150),
        st.integers(1, 200),
        st.integers(1, 80),
        st.integers(1, 80),
    ),
    chosen=features,
    seed=st.integers(0, 1000),
)
def test_any_shape_and_any_features(shape: Sizes, chosen: set[str], seed: int) -> None:
    check((make_case(f"any-{seed}", chosen, shape),), Variant())
