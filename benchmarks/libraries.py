"""Attentions of other libraries, torch and OpenVINO, which need not be installed."""

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.problem import Floats, Problem, qkv
from benchmarks.rivals import Running


class Unavailable(Exception):
    """A rival that cannot be timed here; the text says why."""


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unavailable("not installed") from error


def _torch(threads: int) -> Any:
    # Read when torch is loaded: idle threads sleep, as those of our sessions do.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    torch = _imported("torch")
    torch.set_num_threads(threads)
    return torch


def _tensors(torch: Any, problem: Problem) -> list[Any]:
    return [torch.from_numpy(array) for array in qkv(problem).values()]


def _torch_sdpa(problem: Problem, threads: int) -> Running:
    torch = _torch(threads)
    inputs = _tensors(torch, problem)
    attend = torch.nn.functional.scaled_dot_product_attention

    def call() -> Any:
        return attend(*inputs, is_causal=problem.causal)

    return Running(call, lambda: np.asarray(call()))


def _torch_flex(problem: Problem, threads: int) -> Running:
    """FlexAttention, compiled for this shape: what it skips is in its block mask."""
    torch = _torch(threads)
    flex = _imported("torch.nn.attention.flex_attention")
    inputs = _tensors(torch, problem)
    torch.compiler.reset()  # or the shapes of all cases add up to a limit of torch's
    attend = torch.compile(flex.flex_attention, dynamic=False, fullgraph=True)
    try:
        mask = _block_mask(flex, problem)
        attend(*inputs, block_mask=mask)
    except Exception as error:  # of any kind: compilers, and what torch lacks here
        raise Unavailable(f"not available: {type(error).__name__}") from error

    def call() -> Any:
        return attend(*inputs, block_mask=mask)

    return Running(call, lambda: np.asarray(call()))


def _block_mask(flex: Any, problem: Problem) -> Any:
    """The keys that a query sees, as FlexAttention wants them told; None for all."""
    if not problem.causal:
        return None
    window = problem.window

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        past = query >= key
        return past if window is None else past & (query - key <= window)

    return flex.create_block_mask(seen, None, None, problem.queries, problem.keys, device="cpu")


def _openvino(problem: Problem, threads: int) -> Running:
    openvino = _imported("openvino")
    operators = _imported("openvino.opset13")
    inputs = qkv(problem)
    values = [operators.parameter(value.shape, np.float32, name) for name, value in inputs.items()]
    output = operators.scaled_dot_product_attention(*values, causal=problem.causal)
    # The default type may be bfloat16, which would be another result.
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Model([output], values, "attention")
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    for index, value in enumerate(inputs.values()):
        request.set_input_tensor(index, openvino.Tensor(value))

    def result() -> Floats:
        request.infer()
        return np.array(request.get_output_tensor(0).data)

    return Running(request.infer, result)


LIBRARIES: Mapping[str, Callable[[Problem, int], Running]] = {
    "torch SDPA": _torch_sdpa,
    "torch FlexAttention": _torch_flex,
    "OpenVINO": _openvino,
}
"""What each name stands for, given the threads; each raises `Unavailable` where it is not."""
