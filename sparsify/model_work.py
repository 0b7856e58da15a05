"""The work of a model beside its attentions: the products with stored weights."""

import math
from collections.abc import Iterator

from onnx import GraphProto, NodeProto, TensorProto

from sparsify.model import Model
from sparsify.workload import ITEM_BYTES, MatrixWork

PRODUCTS = frozenset(
    {
        "Attention",
        "DynamicQuantizeMatMul",
        "FusedGemm",
        "FusedMatMul",
        "Gemm",
        "MatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QAttention",
        "QLinearMatMul",
    }
)
"""Operators that multiply tokens with a stored matrix."""

_CARRIES = frozenset({"Cast", "DequantizeLinear", "Identity", "Transpose"})
"""Operators through which a stored matrix may go first."""


def weight_sizes(model: Model) -> list[tuple[int, ...]]:
    """The dimensions of every stored matrix that tokens are multiplied with, once per use."""
    return list(_sizes(model.proto.graph))


def rest_of(model: Model, tokens: int, dtype: str = "float32") -> MatrixWork:
    """What `tokens` tokens take beside the attentions.

    Every token is counted in every product; convolutions and the work between products are not
    counted.
    """
    item = ITEM_BYTES[dtype]
    sizes = weight_sizes(model)
    weights = sum(math.prod(size) for size in sizes)
    rows = sum(size[-1] + size[-2] for size in sizes)
    return MatrixWork(tokens * weights, item * (weights + tokens * rows), dtype, len(sizes))


def _sizes(graph: GraphProto) -> Iterator[tuple[int, ...]]:
    stored = {tensor.name: tensor for tensor in graph.initializer}
    made = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type in PRODUCTS:
            found = (_stored(name, stored, made) for name in node.input)
            yield from (tuple(t.dims) for t in found if t is not None and len(t.dims) >= 2)


def _stored(
    name: str, stored: dict[str, TensorProto], made: dict[str, NodeProto]
) -> TensorProto | None:
    """The tensor in the file that a value is, after steps that keep its numbers."""
    while name in made and made[name].op_type in _CARRIES:
        name = made[name].input[0]
    return stored.get(name)
