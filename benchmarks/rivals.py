"""Everything that a case can time: our operator and its rivals, each a model with its inputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks import operators
from benchmarks.operators import TYPES
from benchmarks.paired import Call, Values, bound, session
from benchmarks.problem import Floats, Problem, bias, padding, qkv, selection, tokens_first


@dataclass(frozen=True)
class Running:
    """An attention that is ready: one run of it, and its output in our operator's layout.

    With `same` it computes what ours does.
    """

    call: Call
    output: Callable[[], Floats]
    same: bool = True


@dataclass(frozen=True)
class Entry:
    """A model with its inputs.

    `threads` of 0 are those of the run; `bfloat16` asks for that arithmetic. An entry with `same`
    computes what ours does; its output is [1, H, S, D] up to a reshape, or with `flat` [1, S, H*D].
    """

    model: bytes
    feeds: Values
    same: bool = True
    flat: bool = False
    threads: int = 0
    bfloat16: bool = False

    def running(self, problem: Problem, threads: int) -> Running:
        """Open a session for it; `threads` are those of the run."""
        active = session(self.model, threads=self.threads or threads, bfloat16=self.bfloat16)

        def output() -> Floats:
            return self.heads_first(active.run(None, dict(self.feeds))[0], problem)

        return Running(bound(active, self.feeds), output, self.same)

    def heads_first(self, output: Floats, problem: Problem) -> Floats:
        """The output in our operator's layout."""
        if self.flat:
            split = output.reshape(1, problem.queries, problem.heads, problem.dim)
            return split.transpose(0, 2, 1, 3)
        return output.reshape(1, problem.heads, problem.queries, problem.dim)


def _ours(problem: Problem) -> Entry:
    feeds: dict[str, Any] = {}
    for name, array in qkv(problem).items():
        feeds[name] = _as_type(array, problem.dtype)
    if problem.blocks is not None:
        feeds |= selection(problem, problem.blocks)
    if problem.mask == "bias":
        feeds["attn_bias"] = bias(problem)
    if problem.mask == "padding":
        feeds["attn_mask"] = padding(problem)[:, None, None]
    return Entry(operators.sparse_attention(problem), feeds, bfloat16=problem.bfloat16)


def _as_type(array: Floats, dtype: str) -> Any:
    if dtype == "bfloat16":
        # The upper half of a float32, rounded; numpy has no such type.
        upper = ((array.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(upper, TYPES[dtype])
    return array.astype(dtype, copy=False)


def _fused_alike(problem: Problem) -> Entry:
    drawn = qkv(problem)
    feeds = {name: tokens_first(array) for name, array in drawn.items()}
    if problem.mask == "bias":
        feeds["attention_bias"] = bias(problem)
    if problem.mask == "padding":
        feeds["key_padding_mask"] = padding(problem).astype(np.int32)
    return Entry(operators.multi_head_attention(problem), feeds, flat=True)


def _fused(problem: Problem) -> Entry:
    plain = replace(
        problem, dtype="float32", causal=False, window=None, mask="", blocks=None, residual=0
    )
    same = plain == replace(problem, bfloat16=False)
    return replace(_fused_alike(plain), same=same)


def _fused_cached(problem: Problem) -> Entry:
    """MultiHeadAttention on the keys of a cache, [1, H, Sk, D], repeated for every query head."""
    feeds, group = qkv(problem), problem.heads // problem.kv_heads
    feeds["Q"] = tokens_first(feeds["Q"])
    feeds |= {name: np.repeat(feeds[name], group, axis=1) for name in ("K", "V")}
    return Entry(operators.multi_head_attention(problem), feeds, flat=True)


def _group_query(problem: Problem) -> Entry:
    """GroupQueryAttention without a past: all keys are new."""
    feeds = {name: tokens_first(array) for name, array in qkv(problem).items()}
    feeds["seqlens_k"] = np.array([problem.keys - 1], np.int32)
    feeds["total_sequence_length"] = np.array(problem.keys, np.int32)
    return Entry(operators.group_query_attention(problem), feeds, flat=True)


def _onnx_attention(problem: Problem) -> Entry:
    return Entry(operators.onnx_attention(problem), qkv(problem))


def _unfused(problem: Problem) -> Entry:
    """Plain MatMuls; the query heads of one key head are the rows of one matrix."""
    feeds = qkv(problem)
    feeds["Q"] = feeds["Q"].reshape(1, problem.kv_heads, -1, problem.dim)
    return Entry(operators.unfused(problem), feeds)


def _same_layout(problem: Problem) -> Entry:
    feeds = {name: tokens_first(array) for name, array in qkv(problem).items()}
    return Entry(operators.sparse_attention_tokens_first(problem), feeds, flat=True)


def _without_residual(problem: Problem) -> Entry:
    return replace(_ours(replace(problem, residual=0)), same=False)


def _ours_float32(problem: Problem) -> Entry:
    return replace(_ours(replace(problem, dtype="float32", bfloat16=False)), same=False)


def _one_thread(problem: Problem) -> Entry:
    return replace(_ours(problem), threads=1)


ENTRIES: Mapping[str, Callable[[Problem], Entry]] = {
    "ours": _ours,
    "fused": _fused,
    "fused alike": _fused_alike,
    "fused, cache": _fused_cached,
    "GroupQueryAttention": _group_query,
    "ai.onnx Attention": _onnx_attention,
    "unfused": _unfused,
    "same layout": _same_layout,
    "without residual": _without_residual,
    "ours, float32": _ours_float32,
    "1 thread": _one_thread,
}
"""What each name stands for; "fused alike" has the problem's mask and causality, "fused" none."""
