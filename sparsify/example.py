"""Runs a pattern's nodes on example data, without onnxruntime: for drawings and for checks."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from sparsify.bodies import bodies_of, imports_of
from sparsify.builder import Builder
from sparsify.grids import Bools, Int32s, grid_from_selection
from sparsify.pattern import DynamicPattern, Grid, Pattern, SiteInputs
from sparsify.selection import emit_selection

Floats = npt.NDArray[np.float32]

_HEAD_DIM = 32
_CLUSTERS = 6


def example_opset() -> int:
    """Name an opset that every supported version of onnx knows."""
    return min(17, onnx.defs.onnx_opset_version())


@dataclass(frozen=True)
class Setting:
    """The constants of the site that a selection model is written for; None means not fixed."""

    opset: int
    scale: float = _HEAD_DIM**-0.5
    group: int = 1
    causal: bool = False
    offset: int = 0
    heads: int | None = None
    q_length: int | None = None
    k_length: int | None = None
    max_length: int | None = None
    element_type: int = TensorProto.FLOAT


def selection_model(pattern: Pattern, setting: Setting) -> ModelProto:
    """Write a model from `query` and `key` to `block_indices` and `block_count`."""
    builder = Builder(setting.opset, "")
    inputs = SiteInputs(
        query="query",
        key="key",
        value="key",
        scale=setting.scale,
        group=setting.group,
        causal=setting.causal,
        element_type=setting.element_type,
        query_offset=builder.ints(setting.offset) if setting.offset else None,
    )
    selection = emit_selection(
        pattern,
        builder,
        inputs,
        q_length=setting.q_length,
        k_length=setting.k_length,
        max_length=setting.max_length,
        offset=setting.offset,
        heads=setting.heads,
    )
    for name, result in vars(selection).items():
        builder.node("Identity", [result], outputs=[name])
    return _model(builder, setting)


def _model(builder: Builder, setting: Setting) -> ModelProto:
    def info(name: str, element_type: int, rank: int) -> onnx.ValueInfoProto:
        shape = [f"{name}_{axis}" for axis in range(rank)]
        return helper.make_tensor_value_info(name, element_type, shape)

    graph = helper.make_graph(
        builder.nodes,
        "selection",
        [info(name, setting.element_type, 4) for name in ("query", "key")],
        [
            info("block_indices", TensorProto.INT32, 4),
            info("block_count", TensorProto.INT32, 3),
        ],
    )
    return helper.make_model(
        graph,
        functions=bodies_of(builder.calls, setting.opset, setting.element_type),
        opset_imports=[helper.make_opsetid("", setting.opset), *imports_of(builder.calls)],
        ir_version=8,
    )


def run_selection(model: ModelProto, query: Floats, key: Floats) -> tuple[Int32s, Int32s]:
    """Run a selection model in onnx's reference implementation."""
    indices, count = ReferenceEvaluator(model).run(None, {"query": query, "key": key})
    return np.asarray(indices), np.asarray(count)


def clustered(grid: Grid, batch: int = 1, seed: int = 0) -> tuple[Floats, Floats]:
    """Draw queries and keys in which a few topics come and go along the sequence."""
    rng = np.random.default_rng(seed)
    length = max(grid.q_len + grid.offset, grid.k_len)
    topics = np.repeat(rng.integers(_CLUSTERS, size=length // 48 + 1), 48)[:length]
    centres = rng.standard_normal((batch, grid.kv_heads, _CLUSTERS, _HEAD_DIM))
    tokens = centres[:, :, topics]
    shape = (batch, grid.heads, length, _HEAD_DIM)
    query = np.repeat(tokens, grid.heads // grid.kv_heads, axis=1)
    query = 2 * query + rng.standard_normal(shape)
    key = tokens + 0.5 * rng.standard_normal(tokens.shape)
    query = query[:, :, grid.offset : grid.offset + grid.q_len]
    return query.astype(np.float32), key[:, :, : grid.k_len].astype(np.float32)


def example_grid(pattern: DynamicPattern, q_len: int = 1024, heads: int = 1) -> Bools:
    """Show what a dynamic pattern keeps on seeded clustered data: [heads, q_blocks, k_blocks].

    An example, not a promise: another input gives another grid.
    """
    grid = Grid(heads, heads, q_len, q_len, pattern.q_block, pattern.k_block)
    return example_selection(pattern, grid)


def example_selection(pattern: DynamicPattern, grid: Grid) -> Bools:
    """Show what a dynamic pattern keeps on the example data of one grid."""
    setting = Setting(example_opset(), group=grid.heads // grid.kv_heads, causal=grid.causal)
    model = selection_model(pattern, replace(setting, heads=grid.heads))
    indices, count = run_selection(model, *clustered(grid))
    mask = grid_from_selection(indices, count, grid.k_blocks)[0]
    return np.asarray(np.broadcast_to(mask, (grid.heads, grid.q_blocks, grid.k_blocks)))
