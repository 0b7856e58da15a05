"""Finds out whether this installation works, and what each fault means."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import numpy as np
from onnx import TensorProto, helper

from sparsify import plugins, runtime
from sparsify.errors import SparsifyError


@dataclass(frozen=True)
class Check:
    """One question to the installation: its answer, and what to do when the answer is bad."""

    name: str
    good: bool
    answer: str
    advice: str = ""


def examine() -> list[Check]:
    """All checks, in the order in which faults explain one another."""
    return [_versions(), _onnxruntime(), *_plugins(), *_kernels()]


def _versions() -> Check:
    versions = [f"{name} {metadata.version(name)}" for name in ("onnx-sparsify", "onnx", "numpy")]
    return Check("versions", True, f"Python {platform.python_version()}, {', '.join(versions)}")


def _onnxruntime() -> Check:
    try:
        ort = runtime.onnxruntime()
    except SparsifyError as error:
        return Check("onnxruntime", False, "not installed", str(error))
    providers = ", ".join(ort.get_available_providers())
    return Check("onnxruntime", True, f"{ort.__version__} with {providers}")


def _plugins() -> list[Check]:
    checks = []
    for kind in plugins.KINDS:
        broken, names = [], plugins.names(kind)
        for name in names:
            try:
                plugins.get(kind, name)
            except SparsifyError as error:
                broken.append(str(error))
        checks.append(Check(kind, not broken, ", ".join(names) or "none", "; ".join(broken)))
    return checks


def _kernels() -> list[Check]:
    return [
        _answered(f"kernel {name}", lambda kernel=kernel: _kernel_answer(kernel))  # type: ignore[misc]
        for name, kernel in plugins.every("kernels")
    ]


def _kernel_answer(kernel: plugins.Kernel) -> str:
    reason = kernel.unavailable()
    if reason is not None:
        raise SparsifyError(f"{reason}; outputs still run, through their function bodies")
    dtypes = ", ".join(kernel.dtypes)
    operators = ", ".join(kernel.operators)
    return f"loads, instructions: {instruction_set()}; {operators} for {dtypes}"


def _answered(name: str, question: Callable[[], str]) -> Check:
    try:
        return Check(name, True, question())
    except SparsifyError as error:
        return Check(name, False, "not usable", str(error))


def instruction_set(*, bfloat16: bool = False) -> str:
    """The instruction set level that the CPU library chose, as the library itself says.

    `bfloat16` asks for that arithmetic: "avx512bf16" where the processor is faster at it.

    Raises:
        SparsifyError: the library is missing or does not load.
    """
    runtime.library_path()
    node = helper.make_node("KernelInfo", ["zero"], ["level"], domain="ai.sparsify")
    zero = helper.make_tensor_value_info("zero", TensorProto.INT64, [1])
    level = helper.make_tensor_value_info("level", TensorProto.UINT8, [None])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.sparsify", 1)]
    model = helper.make_model(
        helper.make_graph([node], "info", [zero], [level]), opset_imports=opsets, ir_version=8
    )
    answer = runtime.run(
        runtime.session(model.SerializeToString(), bfloat16=bfloat16),
        {"zero": np.zeros(1, dtype=np.int64)},
    )
    return bytes(answer["level"]).decode("ascii")
