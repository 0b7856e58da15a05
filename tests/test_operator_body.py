"""The operator's body: against the float64 reference, in all opsets, and as a function."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import FunctionProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from reference import Attributes, sparse_attention

from sparsify.errors import SparsifyError
from sparsify.testing import TOLERANCE, Variant, check_operator
from sparsify.testing.operator import case_inputs, case_model, run_case, session
from sparsify.testing.operator_cases import Case, make_case, operator_cases
from sparsify_ops.sparse_attention import FEATURES, SPARSE_ATTENTION

NEWEST = onnx.defs.onnx_opset_version()
CASES = operator_cases()
OPSETS = (12, 17, NEWEST)
DTYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
FULL = Variant(features=FEATURES)


def truth(case: Case, dtype: int = TensorProto.FLOAT) -> npt.NDArray[np.float64]:
    """Give the float64 result on the inputs as `dtype` holds them."""
    to = helper.tensor_dtype_to_np_dtype(dtype)
    rounded = {
        name: x.astype(to).astype(np.float64) if x.dtype == np.float32 else x
        for name, x in case.inputs.items()
    }
    return sparse_attention(rounded, Attributes.of(case.attributes))


def check(cases: tuple[Case, ...], variant: Variant) -> None:
    """Every case's body agrees with the reference."""
    for case in cases:
        found = run_case(SPARSE_ATTENTION, case, variant)
        expected, tolerance = truth(case, variant.dtype), TOLERANCE[variant.dtype]
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=case.name)


# Against the reference --------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [Variant(), FULL], ids=["minimal", "full"])
def test_body_agrees_with_the_reference(variant: Variant) -> None:
    check(CASES, variant)


@pytest.mark.parametrize("opset", [12, 13, 18, NEWEST])
def test_every_opset_means_the_same(opset: int) -> None:
    check(CASES[::8], Variant(opset=opset))
    check(CASES[4::24], Variant(opset=opset, features=FEATURES))


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_half_types_agree_with_the_reference(dtype: int) -> None:
    check(CASES[::5], Variant(dtype=dtype))
    check(CASES[2::30], Variant(dtype=dtype, features=FEATURES))


def test_optimised_by_onnx_runtime() -> None:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    for case in CASES[3::12]:
        model = case_model(SPARSE_ATTENTION, case, Variant())
        active = ort.InferenceSession(model.SerializeToString(), options)
        found = active.run(None, dict(case.inputs))[0]
        np.testing.assert_allclose(found, truth(case), rtol=0, atol=2e-5, err_msg=case.name)


def test_conformance_suite_accepts_the_body() -> None:
    check_operator(SPARSE_ATTENTION, cases=CASES[:40])


# What the reference itself must say -------------------------------------------------------------


def test_reference_is_plain_attention_when_nothing_is_asked() -> None:
    case = make_case("plain", set())
    q, k, v = (case.inputs[name].astype(np.float64) for name in "QKV")
    share = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, share, 1), np.repeat(v, share, 1)
    weights = np.exp(case.attributes["scale"] * q @ k.transpose(0, 1, 3, 2))
    expected = weights @ v / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(truth(case), expected, atol=1e-12)


@pytest.mark.parametrize("kind", [1, 2])
def test_groups_of_equal_keys_lose_nothing(kind: int) -> None:
    """A pseudo-key stands exactly for keys that are all alike: their variance is 0."""
    case = make_case("equal keys", {"selection", "residual"})
    grouped = np.arange(case.inputs["K"].shape[2]) // 16 * 16
    alike = {name: case.inputs[name][:, :, grouped] for name in "KV"}
    attributes = {**case.attributes, "k_block": 16, "residual": kind}
    case = replace(case, inputs={**case.inputs, **alike}, attributes=attributes)
    dense = {name: case.inputs[name] for name in "QKV"}
    expected = sparse_attention(dense, Attributes.of(case.attributes))
    np.testing.assert_allclose(truth(case), expected, atol=1e-6)


# Special values ---------------------------------------------------------------------------------


def full_case(changed: Mapping[str, npt.NDArray[np.generic]]) -> Case:
    """Give a small dense case with some inputs given."""
    rng = np.random.default_rng(7)
    inputs = {name: rng.standard_normal((1, 2, 20, 8), dtype=np.float32) for name in "QKV"}
    attributes = {"q_block": 16, "k_block": 4, "scale": 0.5, "residual_block": 0}
    return Case("special", {**inputs, **changed}, attributes, frozenset(changed))


def test_nan_spreads_over_its_row_and_no_further() -> None:
    case = full_case({"attn_mask": np.tri(20, 20, dtype=np.bool_)})
    case.inputs["Q"][0, 0, 3] = np.nan
    for variant in (Variant(), FULL):
        spoiled = np.isnan(run_case(SPARSE_ATTENTION, case, variant)).any(axis=-1)
        assert spoiled[0, 0, 3]
        assert spoiled.sum() == 1


def test_nan_bias_is_not_forbidding() -> None:
    bias = np.full((20, 20), -np.inf, np.float32)
    bias[5, 7] = np.nan
    for variant in (Variant(), FULL):
        case = full_case({"attn_bias": bias})
        found = run_case(SPARSE_ATTENTION, case, variant)
        assert np.isnan(found[0, :, 5]).all()
        assert not np.delete(found, 5, axis=2).any()


def test_rows_without_keys_are_zero_even_with_a_sink() -> None:
    nothing = {"key_lengths": np.zeros(1, np.int64), "sinks": np.ones(2, np.float32)}
    for variant in (Variant(), FULL):
        assert not run_case(SPARSE_ATTENTION, full_case(nothing), variant).any()


def test_a_residual_has_no_effect_where_every_block_is_kept() -> None:
    case = make_case("every block", {"selection", "residual", "iso", "causal"})
    every = {"block_count": np.full_like(case.inputs["block_count"], -1)}
    case = replace(case, inputs={**case.inputs, **every})
    off = replace(case, attributes={**case.attributes, "residual": 0})
    found, expected = (run_case(SPARSE_ATTENTION, each, Variant()) for each in (case, off))
    np.testing.assert_array_equal(found, expected)


def test_keys_with_a_common_offset_keep_their_variance() -> None:
    """Statistics are taken around the group's mean: 1000 + x has the variance of x."""
    case = make_case("offset keys", {"selection", "residual", "iso"})
    shift = np.zeros_like(case.inputs["K"])
    shift[..., 0] = 1000
    q = case.inputs["Q"].copy()
    q[..., 0] = 0
    case = replace(case, inputs={**case.inputs, "Q": q, "K": case.inputs["K"] + shift})
    for variant in (Variant(), FULL):
        found = run_case(SPARSE_ATTENTION, case, variant)
        np.testing.assert_allclose(found, truth(case), rtol=0, atol=2e-4)


# Well-formed functions --------------------------------------------------------------------------


@lru_cache(maxsize=1)
def bodies() -> list[FunctionProto]:
    """Bodies of all opsets, types, single features, and all features."""
    wanted = [frozenset(), FEATURES, *(case.uses for case in CASES[::16])]
    return [
        SPARSE_ATTENTION.function(opset, dtype, uses)
        for opset in range(12, NEWEST + 1)
        for dtype in (DTYPES if opset > 12 else DTYPES[:2])
        for uses in wanted
    ]


def test_bodies_use_only_what_their_opset_has() -> None:
    for body in bodies():
        assert [(entry.domain, entry.version) for entry in body.opset_import] == [
            ("", body.opset_import[0].version)
        ]
        for node in body.node:
            schema = onnx.defs.get_schema(node.op_type, body.opset_import[0].version)
            assert {a.name for a in node.attribute} <= set(schema.attributes), node.op_type
            assert schema.min_input <= len(node.input) <= schema.max_input, node.op_type
            assert not schema.deprecated


def test_bodies_rely_on_no_default() -> None:
    for body in bodies():
        assert list(body.attribute) == list(SPARSE_ATTENTION.attributes)
        assert not body.attribute_proto
        referenced = {a.ref_attr_name for n in body.node for a in n.attribute} - {""}
        assert referenced <= set(body.attribute)


def test_every_result_is_used() -> None:
    """A body holds no node that does not lead to Y."""
    for body in bodies():
        read = {name for node in body.node for name in node.input} | {"Y"}
        assert all(set(node.output) & read for node in body.node)


def test_a_body_reads_only_the_inputs_of_its_features() -> None:
    for case in CASES:
        body = SPARSE_ATTENTION.function(17, TensorProto.FLOAT, case.uses)
        read = {name for node in body.node for name in node.input} & set(body.input)
        assert read <= set(case.inputs)


def test_the_dense_body_is_attention_and_nothing_more() -> None:
    body = SPARSE_ATTENTION.function(17, TensorProto.FLOAT, frozenset())
    ops = [node.op_type for node in body.node if node.op_type != "Constant"]
    assert sorted(ops) == ["MatMul", "MatMul", "Mul", "Softmax", "Transpose"]


@pytest.mark.parametrize("opset", OPSETS)
def test_checker_accepts_models_with_the_body(opset: int) -> None:
    for case in CASES[1::20]:
        for features in (None, FEATURES):
            variant = Variant(opset=opset, features=features)
            model = case_model(SPARSE_ATTENTION, case, variant)
            onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("opset", OPSETS)
def test_onnx_reference_agrees(opset: int) -> None:
    for case in CASES[5::28]:
        for features in (None, FEATURES):
            variant = Variant(opset=opset, features=features)
            model = case_model(SPARSE_ATTENTION, case, variant)
            with np.errstate(all="ignore"):
                evaluator = ReferenceEvaluator(model)
                found = evaluator.run(None, dict(case_inputs(case, variant)))[0]
            np.testing.assert_allclose(found, truth(case), rtol=0, atol=2e-5, err_msg=case.name)


def test_missing_inputs_may_end_early() -> None:
    """The checker and ONNX Runtime need no empty names at the end; onnx.reference does."""
    for case in CASES[7::30]:
        model = case_model(SPARSE_ATTENTION, case, Variant())
        node = next(node for node in model.graph.node if node.op_type == "SparseAttention")
        while not node.input[-1]:
            node.input.pop()
        onnx.checker.check_model(model, full_check=True)
        found = session(model).run(None, dict(case.inputs))[0]
        np.testing.assert_array_equal(found, run_case(SPARSE_ATTENTION, case, Variant()))


def test_inputs_without_a_use_are_not_read() -> None:
    """An input that the body's features do not name may be given all the same."""
    case = full_case({"key_lengths": np.array([11])})
    extra = replace(case, inputs={**case.inputs, "attn_mask": np.zeros((1, 1), np.bool_)})
    model = case_model(SPARSE_ATTENTION, extra, Variant())
    onnx.checker.check_model(model, full_check=True)
    found = session(model).run(None, dict(extra.inputs))[0]
    np.testing.assert_array_equal(found, run_case(SPARSE_ATTENTION, case, Variant()))


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opset", "dtype", "uses", "sentence"),
    [
        (11, TensorProto.FLOAT, frozenset(), "opset 11"),
        (NEWEST + 1, TensorProto.FLOAT, frozenset(), f"opset {NEWEST + 1}"),
        (12, TensorProto.BFLOAT16, frozenset(), "no bfloat16"),
        (17, TensorProto.DOUBLE, frozenset(), "float16"),
        (17, TensorProto.FLOAT, frozenset({"widow"}), "no feature widow"),
    ],
)
def test_impossible_bodies_are_refused(
    opset: int, dtype: int, uses: frozenset[str], sentence: str
) -> None:
    with pytest.raises(SparsifyError, match=sentence):
        SPARSE_ATTENTION.function(opset, dtype, uses)
