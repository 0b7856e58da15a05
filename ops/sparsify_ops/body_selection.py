"""From block_indices and block_count to the key blocks each query block keeps."""

import numpy as np
from onnx import TensorProto, numpy_helper

from sparsify_ops.body_scope import Scope


def kept_blocks(scope: Scope) -> str:
    """Find where a query block keeps a key block: bool [B or 1, Hq or 1, Nq or 1, Nk]."""
    b = scope.b
    count = b.unsqueeze(b.cast("block_count", TensorProto.INT64), [3])
    every = b.op("Less", count, scope.integer(0))
    return b.op("Or", _marked(scope, count), every)


def kept_keys(scope: Scope, blocks: str) -> str:
    """Give the same for single keys: [B or 1, Hq or 1, Nq or 1, Sk]."""
    return scope.b.gather(blocks, scope.b.op("Div", scope.keys, scope.k_block), 3)


def _marked(scope: Scope, count: str) -> str:
    """Find wt the listed blocks; dropped ids mark one column beyond the last block."""
    b = scope.b
    target = _targets(scope, count)
    leading = b.dims(target, 0, 1, 2)
    width = scope.one(b.op("Add", scope.k_blocks, scope.integer(1)))
    nothing = b.op("ConstantOfShape", b.concat([leading, width], 0), attributes={"value": _false()})
    marks = b.op("Expand", b.constant(True, np.bool_), b.op("Shape", target))
    marked = b.op("ScatterElements", nothing, target, marks, attributes={"axis": 3})
    return b.slice(marked, b.ints(0), scope.one(scope.k_blocks), 3)


def _targets(scope: Scope, count: str) -> str:
    """Each listed id, or Nk where it is padding or beyond the keys: [b, h, n, C]."""
    b = scope.b
    ids = b.cast("block_indices", TensorProto.INT64)
    listed = b.op("Less", b.arange(b.dim("block_indices", 3)), count)
    real = b.op("And", b.op("Less", scope.integer(-1), ids), b.op("Less", ids, scope.k_blocks))
    return b.op("Where", b.op("And", listed, real), ids, scope.k_blocks)


def _false() -> TensorProto:
    return numpy_helper.from_array(np.zeros(1, np.bool_))
