"""One attention as three tiny models: ours, ONNX Runtime's fused one, and plain MatMul-Softmax."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from sparsify import plugins

Floats = npt.NDArray[np.float32]
Arrays = dict[str, npt.NDArray[Any]]

_OPSET = 17
_FLOATS = ("Q", "K", "V")


@dataclass(frozen=True)
class Shape:
    """The size of one attention, batch 1: heads, tokens, components of a head."""

    heads: int
    length: int
    dim: int


@dataclass(frozen=True)
class Blocks:
    """Which key blocks are computed: a share of them, in blocks of 64 queries by `k_block` keys."""

    density: float
    k_block: int
    q_block: int = 64


def qkv(shape: Shape, seed: int = 0) -> Arrays:
    """Draw normal Q, K and V in our operator's layout, [1, H, S, D]."""
    rng = np.random.default_rng(seed)
    sizes = (1, shape.heads, shape.length, shape.dim)
    return {name: rng.standard_normal(sizes).astype(np.float32) for name in _FLOATS}


def tokens_first(arrays: Arrays) -> Arrays:
    """Lay the same numbers out for MultiHeadAttention, [1, S, H*D]."""
    flat = {n: a.transpose(0, 2, 1, 3).reshape(1, a.shape[2], -1) for n, a in arrays.items()}
    return {name: np.ascontiguousarray(array) for name, array in flat.items()}


def selection(shape: Shape, blocks: Blocks, seed: int = 0) -> Arrays:
    """Draw another random list of key blocks for every head and query block.

    The block that holds the query block's first token is always kept. Counts differ by at most one
    between rows and add up to the density, so that the actual share is the nominal one.
    """
    rows, columns = -(-shape.length // blocks.q_block), -(-shape.length // blocks.k_block)
    rng = np.random.default_rng(seed)
    count = _counts(shape.heads * rows, columns, blocks.density, rng).reshape(shape.heads, rows)
    indices = np.full((1, shape.heads, rows, count.max()), -1, dtype=np.int32)
    for head, row in np.ndindex(shape.heads, rows):
        order = rng.permutation(columns)
        own = row * blocks.q_block // blocks.k_block
        kept = [own, *order[order != own][: count[head, row] - 1]]
        indices[0, head, row, : len(kept)] = sorted(kept)
    return {"block_indices": indices, "block_count": count[None].astype(np.int32)}


def _counts(
    rows: int, columns: int, density: float, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    least, more = divmod(round(density * rows * columns), rows)
    count = np.full(rows, least, dtype=np.int64)
    count[rng.permutation(rows)[:more]] += 1
    return np.maximum(count, 1)


def actual_density(shape: Shape, blocks: Blocks, chosen: Arrays) -> float:
    """The share of the key blocks that a selection keeps."""
    return float(chosen["block_count"].mean() / -(-shape.length // blocks.k_block))


def sparse_attention(shape: Shape, blocks: Blocks | None = None, causal: bool = False) -> bytes:
    """Our operator; with `blocks` it takes a selection as two more inputs."""
    operator: plugins.Operator = plugins.get("operators", "SparseAttention")
    attributes: dict[str, int | float] = {"scale": shape.dim**-0.5, "is_causal": int(causal)}
    if blocks is not None:
        attributes |= {"q_block": blocks.q_block, "k_block": blocks.k_block}
    names = list(operator.inputs[: 3 if blocks is None else 5])
    node = _ours(names, "Y", attributes)
    return _model([node], operator.domain, operator.version, names)


def sparse_attention_tokens_first(shape: Shape) -> bytes:
    """Our operator on MultiHeadAttention's layout, between the Transposes of a real model."""
    operator: plugins.Operator = plugins.get("operators", "SparseAttention")
    attributes: dict[str, int | float] = {"scale": shape.dim**-0.5}
    nodes = [_node("Constant", [], "split", value_ints=[0, 0, shape.heads, shape.dim])]
    for name in _FLOATS:
        nodes.append(_node("Reshape", [name, "split"], f"{name}_split"))
        nodes.append(_node("Transpose", [f"{name}_split"], f"{name}_heads", perm=[0, 2, 1, 3]))
    inputs = [f"{name}_heads" for name in _FLOATS]
    nodes.append(_ours(inputs, "heads", attributes))
    nodes.append(_node("Transpose", ["heads"], "rows", perm=[0, 2, 1, 3]))
    nodes.append(_node("Constant", [], "merged", value_ints=[0, 0, shape.heads * shape.dim]))
    nodes.append(_node("Reshape", ["rows", "merged"], "Y"))
    return _model(nodes, operator.domain, operator.version)


def _ours(inputs: Sequence[str], output: str, changes: Mapping[str, int | float]) -> NodeProto:
    operator: plugins.Operator = plugins.get("operators", "SparseAttention")
    node = helper.make_node(operator.name, list(inputs), [output], domain=operator.domain)
    attributes = {**operator.attributes, **changes}
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return node


def multi_head_attention(shape: Shape, causal: bool = False) -> bytes:
    """The rival: ONNX Runtime's fused attention, on [1, S, H*D]."""
    domain = "com.microsoft"
    node = helper.make_node(
        "MultiHeadAttention",
        list(_FLOATS),
        ["Y"],
        domain=domain,
        num_heads=shape.heads,
        unidirectional=int(causal),
    )
    return _model([node], domain, 1)


def unfused(shape: Shape) -> bytes:
    """The other rival: what exporters write, Transpose-MatMul-Mul-Softmax-MatMul."""
    nodes = [
        _node("Transpose", ["K"], "Kt", perm=[0, 1, 3, 2]),
        _node("MatMul", ["Q", "Kt"], "scores"),
        _node("Constant", [], "scale", value_float=shape.dim**-0.5),
        _node("Mul", ["scores", "scale"], "scaled"),
        _node("Softmax", ["scaled"], "probabilities", axis=-1),
        _node("MatMul", ["probabilities", "V"], "Y"),
    ]
    return _model(nodes)


def _node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, list(inputs), [output], **attributes)


def _model(
    nodes: Sequence[NodeProto], domain: str = "", version: int = 1, names: Sequence[str] = _FLOATS
) -> bytes:
    kinds = {name: TensorProto.FLOAT if name in _FLOATS else TensorProto.INT32 for name in names}
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", _OPSET)]
    if domain:
        opsets.append(helper.make_opsetid(domain, version))
    graph = helper.make_graph(nodes, "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())
