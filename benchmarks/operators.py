"""One attention as tiny models: ours, ONNX Runtime's own operators, and plain MatMul-Softmax."""

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import NodeProto, TensorProto, helper

from benchmarks.problem import Problem
from sparsify import plugins

TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}

_OPSET = 17
_ATTENTION_OPSET = 23
_IR_VERSIONS = {_OPSET: 8, _ATTENTION_OPSET: 11}
_FLOATS = ("Q", "K", "V")
_OTHERS = {
    "block_indices": TensorProto.INT32,
    "block_count": TensorProto.INT32,
    "attn_mask": TensorProto.BOOL,
    "key_padding_mask": TensorProto.INT32,
    "seqlens_k": TensorProto.INT32,
    "total_sequence_length": TensorProto.INT32,
}
"""Inputs that are not of Q's type."""


def sparse_attention(problem: Problem) -> bytes:
    """Our operator with the inputs that the problem needs."""
    operator: plugins.Operator = plugins.get("operators", "SparseAttention")
    used = {*_FLOATS}
    if problem.blocks is not None:
        used |= {"block_indices", "block_count"}
    if problem.mask:
        used.add("attn_bias" if problem.mask == "bias" else "attn_mask")
    names = _positional(operator.inputs, used)
    return _model([_ours(names, "Y", problem)], names, problem.dtype, ours=True)


def sparse_attention_tokens_first(problem: Problem) -> bytes:
    """Our operator on MultiHeadAttention's layout, between the Transposes of a real model."""
    nodes = [_node("Constant", [], "split", value_ints=[0, 0, problem.heads, problem.dim])]
    for name in _FLOATS:
        nodes.append(_node("Reshape", [name, "split"], f"{name}_split"))
        nodes.append(_node("Transpose", [f"{name}_split"], f"{name}_heads", perm=[0, 2, 1, 3]))
    nodes.append(_ours([f"{name}_heads" for name in _FLOATS], "heads", problem))
    nodes.append(_node("Transpose", ["heads"], "rows", perm=[0, 2, 1, 3]))
    nodes.append(_node("Constant", [], "merged", value_ints=[0, 0, problem.heads * problem.dim]))
    nodes.append(_node("Reshape", ["rows", "merged"], "Y"))
    return _model(nodes, _FLOATS, ours=True)


def multi_head_attention(problem: Problem) -> bytes:
    """The rival: ONNX Runtime's fused attention, with the problem's mask and causality."""
    used = {*_FLOATS}
    if problem.mask:
        used.add("attention_bias" if problem.mask == "bias" else "key_padding_mask")
    names = _positional([*_FLOATS, "bias", "key_padding_mask", "attention_bias"], used)
    attributes: dict[str, Any] = {"num_heads": problem.heads, "unidirectional": int(problem.causal)}
    node = helper.make_node(
        "MultiHeadAttention", names, ["Y"], domain="com.microsoft", **attributes
    )
    return _model([node], names)


def group_query_attention(problem: Problem) -> bytes:
    """ONNX Runtime's attention of language models: always causal, it also writes the cache."""
    used = {*_FLOATS, "seqlens_k", "total_sequence_length"}
    cache = ["past_key", "past_value"]
    names = _positional([*_FLOATS, *cache, "seqlens_k", "total_sequence_length"], used)
    attributes: dict[str, Any] = {"num_heads": problem.heads, "kv_num_heads": problem.kv_heads}
    if problem.window is not None:
        attributes["local_window_size"] = problem.window + 1  # it counts the query's own key
    outputs = ["Y", "present_key", "present_value"]
    node = helper.make_node(
        "GroupQueryAttention", names, outputs, domain="com.microsoft", **attributes
    )
    return _model([node], names, outputs=outputs)


def onnx_attention(problem: Problem) -> bytes:
    """The operator of ai.onnx, as ONNX Runtime runs it."""
    node = _node("Attention", _FLOATS, "Y", is_causal=int(problem.causal))
    return _model([node], _FLOATS, opset=_ATTENTION_OPSET)


def unfused(problem: Problem) -> bytes:
    """The other rival: what exporters write, Transpose-MatMul-Mul-Softmax-MatMul."""
    nodes = [
        _node("Transpose", ["K"], "Kt", perm=[0, 1, 3, 2]),
        _node("MatMul", ["Q", "Kt"], "scores"),
        _node("Constant", [], "scale", value_float=problem.dim**-0.5),
        _node("Mul", ["scores", "scale"], "scaled"),
        _node("Softmax", ["scaled"], "probabilities", axis=-1),
        _node("MatMul", ["probabilities", "V"], "Y"),
    ]
    return _model(nodes, _FLOATS)


def _positional(order: Sequence[str], used: set[str]) -> list[str]:
    """Name inputs by position, up to the last one in use; one that is not used has no name."""
    last = max(order.index(name) for name in used)
    return [name if name in used else "" for name in order[: last + 1]]


def _ours(inputs: Sequence[str], output: str, problem: Problem) -> NodeProto:
    operator: plugins.Operator = plugins.get("operators", "SparseAttention")
    changes: dict[str, int | float] = {
        "scale": problem.dim**-0.5,
        "is_causal": int(problem.causal),
        "residual": problem.residual,
    }
    if problem.window is not None:
        changes["left_window_size"] = problem.window
    if problem.blocks is not None:
        changes |= {"q_block": problem.blocks.q_block, "k_block": problem.blocks.k_block}
    attributes: Mapping[str, int | float] = {**operator.attributes, **changes}
    node = helper.make_node(operator.name, list(inputs), [output], domain=operator.domain)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return node


def _node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, list(inputs), [output], **attributes)


def _model(
    nodes: Sequence[NodeProto],
    names: Sequence[str],
    dtype: str = "float32",
    ours: bool = False,
    outputs: Sequence[str] = ("Y",),
    opset: int = _OPSET,
) -> bytes:
    inputs = [
        helper.make_tensor_value_info(name, _OTHERS.get(name, TYPES[dtype]), None)
        for name in filter(None, names)
    ]
    results = [helper.make_tensor_value_info(name, TYPES[dtype], None) for name in outputs]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    if ours:
        operator: plugins.Operator = plugins.get("operators", "SparseAttention")
        opsets.append(helper.make_opsetid(operator.domain, operator.version))
    graph = helper.make_graph(nodes, "attention", inputs, results)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSIONS[opset])
    return bytes(model.SerializeToString())
