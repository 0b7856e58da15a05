"""Times the operators on this machine: an attention, a choice of blocks, a matrix product."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from sparsify import plugins, runtime
from sparsify.bodies import bodies_of, imports_of
from sparsify.builder import Builder
from sparsify.workload import RESIDUALS, MatrixWork, SelectorWork, Workload, choosing

OPSET = 17
ELEMENT_TYPES: dict[str, int] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
}

_OTHER_TYPES: dict[str, int] = {
    "attn_mask": TensorProto.BOOL,
    "block_count": TensorProto.INT32,
    "block_indices": TensorProto.INT32,
}
"""Types of inputs that do not have that of the queries."""

_RUNS = (5, 60)
"""Fewest and most counted runs of one probe."""
_SECONDS = 0.1
"""How long one probe is repeated, unless the fewest runs take longer."""

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Selecting:
    """Choosing key blocks by the predicted mass of their mean keys, for one length."""

    length: int
    head_dim: int
    heads: int
    k_block: int = 16
    q_block: int = 64

    @property
    def work(self) -> SelectorWork:
        """What the choice takes."""
        sizes = (1, self.heads, self.heads, self.length, self.length, self.head_dim, self.head_dim)
        return choosing(Workload(*sizes, q_block=self.q_block, k_block=self.k_block))


Probe = Workload | Selecting | MatrixWork


def fastest(probes: Sequence[Probe], threads: int) -> list[float]:
    """Median seconds of each, the lower of two rounds: what else a machine does only adds."""
    rounds = [[seconds_of(probe, threads) for probe in probes] for _ in range(2)]
    return [min(times) for times in zip(*rounds, strict=True)]


def seconds_of(probe: Probe, threads: int) -> float:
    """Median seconds of one call with so many threads; float32 and float16 only.

    Raises:
        SparsifyError: ONNX Runtime is missing or does not run the probe.
    """
    model, feeds = _WRITERS[type(probe)](probe)
    active = runtime.session(model, threads=threads)
    names = [output.name for output in active.get_outputs()]
    runtime.run(active, feeds)
    times: list[float] = []
    least, most = _RUNS
    while len(times) < least or (len(times) < most and sum(times) < _SECONDS):
        start = time.perf_counter()
        active.run(names, feeds)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _attention(work: Workload) -> tuple[bytes, Arrays]:
    operator: plugins.Operator = plugins.get("operators", "SparseAttention")
    builder = Builder(OPSET, "")
    feeds = _operands(work)
    if work.kept:
        feeds |= _selection(work)
    if work.bias_heads:
        shape = (1, work.bias_heads, work.q_length, work.k_length)
        # not zeros: pages that nobody wrote to are one and the same page, which stays near
        feeds["attn_bias"] = np.full(shape, 0.5, feeds["Q"].dtype)
    if work.mask_heads:
        shape = (1, work.mask_heads, work.q_length, work.k_length)
        feeds["attn_mask"] = np.ones(shape, np.bool_)
    gathered = work.residual != "none" and work.residual_block != work.k_block
    attributes = {
        "q_block": work.q_block,
        "k_block": work.k_block,
        "scale": work.head_dim**-0.5,
        "residual": RESIDUALS.index(work.residual),
        "residual_block": work.residual_block if gathered else 0,
    }
    flags = {
        "selection": bool(work.kept),
        "attn_bias": work.bias_heads > 0,
        "attn_mask": work.mask_heads > 0,
        "gqa": work.heads != work.kv_heads,
        "residual": work.residual != "none",
        "iso": work.residual == "iso",
        "gathered": gathered,
    }
    uses = frozenset(name for name, wanted in flags.items() if wanted)
    result = builder.call(operator, {name: name for name in feeds}, attributes, uses)[0]
    kind = ELEMENT_TYPES[work.dtype]
    kinds = dict.fromkeys(feeds, kind) | {
        name: element_type for name, element_type in _OTHER_TYPES.items() if name in feeds
    }
    return _model(builder, kinds, [result], kind), feeds


def _operands(work: Workload) -> Arrays:
    rng = np.random.default_rng(0)
    queries = (work.batch, work.heads, work.q_length)
    keys = (work.batch, work.kv_heads, work.k_length)
    sizes = {
        "Q": (*queries, work.head_dim),
        "K": (*keys, work.head_dim),
        "V": (*keys, work.value_dim),
    }
    return {name: _typed(rng.standard_normal(size), work.dtype) for name, size in sizes.items()}


def _typed(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    return array.astype(np.float16 if dtype == "float16" else np.float32)


def _selection(work: Workload) -> Arrays:
    """Draw lists of key blocks, another for every query block, that have the workload's counts."""
    rng = np.random.default_rng(0)
    columns = -(-work.k_length // work.k_block)
    counts = [-(-keys // work.k_block) for keys, blocks in work.kept for _ in range(blocks)]
    rng.shuffle(counts)
    indices = np.full((work.blocks, max(counts)), -1, np.int32)
    for row, count in zip(indices, counts, strict=True):
        row[:count] = np.sort(rng.permutation(columns)[:count])
    shape = (work.batch, work.heads, work.blocks // (work.batch * work.heads))
    return {
        "block_indices": indices.reshape(*shape, -1),
        "block_count": np.array(counts, np.int32).reshape(shape),
    }


def _selecting(probe: Selecting) -> tuple[bytes, Arrays]:
    builder = Builder(OPSET, "")
    attributes = {
        "q_block": probe.q_block,
        "k_block": probe.k_block,
        "scale": probe.head_dim**-0.5,
    }
    mean_keys = plugins.get("operators", "MeanKeyMass")
    mass = builder.call(mean_keys, {"Q": "Q", "K": "K"}, attributes)[0]
    count = builder.ints(max(1, probe.length // probe.k_block // 5))
    top = plugins.get("operators", "TopKBlocks")
    chosen = builder.call(top, {"scores": mass, "count": count}, {})
    size = (1, probe.heads, probe.length, probe.head_dim)
    rng = np.random.default_rng(0)
    feeds = {name: _typed(rng.standard_normal(size), "float32") for name in "QK"}
    kinds = dict.fromkeys("QK", TensorProto.FLOAT)
    return _model(builder, kinds, list(chosen), TensorProto.INT32), feeds


def _product(work: MatrixWork) -> tuple[bytes, Arrays]:
    """Multiply square matrices of about so many multiply-adds."""
    size = round(work.macs ** (1 / 3))
    builder = Builder(OPSET, "")
    result = builder.op("MatMul", "A", "B")
    matrix = np.full((size, size), 0.5, np.float32)
    kinds = dict.fromkeys("AB", TensorProto.FLOAT)
    return _model(builder, kinds, [result], TensorProto.FLOAT), {"A": matrix, "B": matrix}


def _model(builder: Builder, kinds: Mapping[str, int], results: list[str], kind: int) -> bytes:
    outputs = [f"out{index}" for index in range(len(results))]
    for result, output in zip(results, outputs, strict=True):
        builder.node("Identity", [result], outputs=[output])
    values = [helper.make_tensor_value_info(name, k, None) for name, k in kinds.items()]
    made = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
    element_type = kinds.get("Q", TensorProto.FLOAT)
    model: ModelProto = helper.make_model(
        helper.make_graph(builder.nodes, "probe", values, made),
        functions=bodies_of(builder.calls, OPSET, element_type),
        opset_imports=[helper.make_opsetid("", OPSET), *imports_of(builder.calls)],
        ir_version=8,
    )
    return bytes(model.SerializeToString())


_WRITERS: dict[type, Any] = {Workload: _attention, Selecting: _selecting, MatrixWork: _product}
