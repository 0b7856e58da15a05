"""Conformance of the operator: its body in ONNX Runtime against itself and against a kernel.

onnxruntime is imported when a model runs, not before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper

from sparsify.plugins import Operator
from sparsify.runtime import BFLOAT16_OPTION, onnxruntime
from sparsify.testing.operator_cases import Case, neutral_inputs, operator_cases

TOLERANCE: Mapping[int, float] = {
    TensorProto.FLOAT: 2e-5,
    TensorProto.FLOAT16: 2e-3,
    TensorProto.BFLOAT16: 2e-2,
}
"""The largest absolute difference on unit normal data, per element type."""

BFLOAT16_TOLERANCE = 6e-2
"""The same for a kernel that is asked to multiply in bfloat16."""

_TYPES: Mapping[str, int] = {
    "block_indices": TensorProto.INT32,
    "block_count": TensorProto.INT32,
    "attn_mask": TensorProto.BOOL,
    "key_lengths": TensorProto.INT64,
    "query_offset": TensorProto.INT64,
}
"""Inputs that do not have the type of Q."""


@dataclass(frozen=True)
class Variant:
    """How a case becomes a model: the opset, the type of Q, and which features the body has."""

    opset: int = 17
    dtype: int = TensorProto.FLOAT
    features: frozenset[str] | None = None
    """None: those of the case, and inputs it does not use are missing: their name is empty.

    All names are written, because onnx.reference wants as many as the body has inputs.
    """
    bfloat16: bool = False
    """Whether a kernel is asked to multiply in bfloat16."""

    @property
    def tolerance(self) -> float:
        """The largest absolute difference between a kernel and the body."""
        return BFLOAT16_TOLERANCE if self.bfloat16 else TOLERANCE[self.dtype]


def check_operator(
    operator: Operator,
    library: Path | None = None,
    *,
    variant: Variant | None = None,
    cases: Iterable[Case] | None = None,
) -> None:
    """Hold a kernel against the operator's body, on every case.

    `library` is the ONNX Runtime custom-op library with the kernel. Without one, only the body is
    run: every case must load, run and give finite numbers of the right shape.

    Raises:
        AssertionError: cases differ by more than `Variant.tolerance`; the message lists them.

    """
    chosen = Variant() if variant is None else variant
    found = [
        failure
        for case in (operator_cases() if cases is None else cases)
        if (failure := _failure(operator, case, chosen, library)) is not None
    ]
    total = f"{len(found)} cases of {operator.domain}::{operator.name} fail:\n"
    assert not found, total + "\n".join(found)


def run_case(
    operator: Operator, case: Case, variant: Variant, library: Path | None = None
) -> npt.NDArray[np.float32]:
    """Y of one case in ONNX Runtime, [B, Hq, Sq, Dv], through the body or through a library."""
    active = session(case_model(operator, case, variant), library, bfloat16=variant.bfloat16)
    result: npt.NDArray[np.float32] = active.run(None, dict(case_inputs(case, variant)))[0]
    return result


def session(
    model: ModelProto, library: Path | None = None, threads: int = 1, bfloat16: bool = False
) -> Any:
    """Give a session that loads fast: it leaves the graph unoptimised."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if bfloat16:
        options.add_session_config_entry(BFLOAT16_OPTION, "1")
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def case_inputs(case: Case, variant: Variant) -> Mapping[str, npt.NDArray[np.generic]]:
    """Give what the node of `case_model` is given: neutral values for features without a use."""
    if variant.features is None:
        return case.inputs
    neutral = {
        name: value
        for name, value in neutral_inputs().items()
        if _feature(name) in variant.features
    }
    return {**neutral, **case.inputs}


def case_model(operator: Operator, case: Case, variant: Variant) -> ModelProto:
    """Give a model of one node of the operator, with its body.

    Inputs and output are float32 for every element type of the node: casts stand around it.
    """
    inputs = case_inputs(case, variant)
    features = case.uses if variant.features is None else variant.features
    types = {name: _TYPES.get(name, TensorProto.FLOAT) for name in inputs}
    graph = helper.make_graph(
        [*_casts_in(inputs, variant), _node(operator, case, inputs), _cast_out()],
        "case",
        [
            helper.make_tensor_value_info(name, types[name], [None] * x.ndim)
            for name, x in inputs.items()
        ],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * 4)],
    )
    return helper.make_model(
        graph,
        functions=[operator.function(variant.opset, variant.dtype, features)],
        opset_imports=[
            helper.make_opsetid("", variant.opset),
            helper.make_opsetid(operator.domain, operator.version),
        ],
        ir_version=8,
    )


def _node(
    operator: Operator, case: Case, inputs: Mapping[str, npt.NDArray[np.generic]]
) -> NodeProto:
    names = [f"{name}_given" if name in inputs else "" for name in operator.inputs]
    node = helper.make_node(operator.name, names, ["Y_given"], domain=operator.domain)
    values = {**operator.attributes, **case.attributes}
    node.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())
    return node


def _casts_in(inputs: Mapping[str, npt.NDArray[np.generic]], variant: Variant) -> list[NodeProto]:
    return [
        helper.make_node("Cast", [name], [f"{name}_given"], to=_TYPES.get(name, variant.dtype))
        for name in inputs
    ]


def _cast_out() -> NodeProto:
    return helper.make_node("Cast", ["Y_given"], ["Y"], to=TensorProto.FLOAT)


def _feature(name: str) -> str:
    return "selection" if name.startswith("block_") else name


def _failure(operator: Operator, case: Case, variant: Variant, library: Path | None) -> str | None:
    body = run_case(operator, case, variant)
    rows, width = case.inputs["Q"].shape[:3], case.inputs["V"].shape[3]
    if body.shape != (*rows, width):
        return f"{case.name}: the body's result has shape {body.shape}, not {(*rows, width)}"
    other = body if library is None else run_case(operator, case, variant, library)
    if other.shape != body.shape:
        return f"{case.name}: the kernel's result has shape {other.shape}, not {body.shape}"
    error = float(np.max(np.abs(other - body), initial=0.0))
    if error <= variant.tolerance:
        return None
    return f"{case.name} ({', '.join(sorted(case.uses)) or 'dense'}): differs by {error:.1e}"
