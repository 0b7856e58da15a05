"""The whole body: scores and pseudo-keys through one softmax, onto the values."""

import numpy as np
from onnx import TensorProto

from sparsify_ops.body_forbid import allowed, has_residual
from sparsify_ops.body_residual import (
    Groups,
    PseudoKeys,
    find_groups,
    pseudo_keys,
    residual_output,
)
from sparsify_ops.body_scope import Scope
from sparsify_ops.body_scores import additive_mask, scores, to_kv_heads, to_query_heads
from sparsify_ops.body_selection import kept_blocks, kept_keys


def attend(scope: Scope) -> None:
    """Write the body into `scope.b`; its result is named Y."""
    permitted = allowed(scope)
    kept, groups = _selected(scope, permitted)
    mask = additive_mask(scope, permitted, kept)
    pseudo = None if groups is None else pseudo_keys(scope, groups)
    logits = scores(scope)
    if mask is not None:
        logits = scope.b.op("Add", logits, mask.added)
    output = _weighted(scope, logits, pseudo)
    if mask is not None:
        output = _zero_empty_rows(scope, output, mask.empty, groups)
    _finish(scope, output)


def _selected(scope: Scope, permitted: str | None) -> tuple[str | None, Groups | None]:
    """Keys that each query block computes, and the groups of those it leaves out."""
    if "selection" not in scope.uses:
        return None, None
    blocks = kept_blocks(scope)
    keys = kept_keys(scope, blocks)
    if not has_residual(scope):
        return keys, None
    groups = find_groups(scope, permitted, blocks, keys)
    return groups.computed, groups


def _weighted(scope: Scope, logits: str, pseudo: PseudoKeys | None) -> str:
    """Apply one softmax to keys, pseudo-keys and sink, then weigh the values: [B, Hq, Sq, Dv].

    The columns beyond the keys meet zero rows under V, which spares a copy of the weights.
    """
    b = scope.b
    columns = [logits]
    if pseudo is not None:
        columns.append(pseudo.logits)
    if "sinks" in scope.uses:
        columns.append(_sinks(scope))
    weights = b.softmax(b.concat(columns, 3))
    values = scope.v if len(columns) == 1 else _extended_values(scope, weights)
    product = b.op("MatMul", to_kv_heads(scope, weights), values)
    output = to_query_heads(scope, product)
    if pseudo is None:
        return output
    end = b.op("Add", scope.sk, scope.groups)
    own = b.slice(weights, scope.one(scope.sk), scope.one(end), 3)
    return b.op("Add", output, residual_output(scope, pseudo, own))


def _sinks(scope: Scope) -> str:
    """One logit per head, [B, Hq, Sq, 1]."""
    b = scope.b
    column = b.unsqueeze(scope.to_float("sinks"), [0, 2, 3])
    return b.op("Expand", column, b.concat([b.dims("Q", 0, 1, 2), b.ints(1)], 0))


def _extended_values(scope: Scope, weights: str) -> str:
    """V with zero rows for every column of `weights` beyond the keys."""
    b = scope.b
    count = b.op("Sub", b.dims(weights, 3), b.dims("K", 2))
    shape = b.concat([b.dims("V", 0, 1), count, b.dims("V", 3)], 0)
    zeros = b.op("Expand", b.constant(0, np.float32), shape)
    return b.concat([scope.v, zeros], 2)


def _zero_empty_rows(scope: Scope, output: str, empty: str, groups: Groups | None) -> str:
    """0 for rows without a key or pseudo-key, whose softmax is NaN; any other NaN stays."""
    b = scope.b
    if groups is not None:
        alive = b.reduce("ReduceMax", b.cast(groups.alive, TensorProto.FLOAT), [3], keepdims=True)
        none = b.op("Equal", alive, b.scalar(0))
        empty = b.op("And", empty, scope.to_rows(none))
    return b.op("Where", empty, b.scalar(0), output)


def _finish(scope: Scope, output: str) -> None:
    """Name the result Y, in the type of Q."""
    if scope.dtype != TensorProto.FLOAT:
        scope.b.node("Cast", [output], {"to": scope.dtype}, outputs=["Y"])
    else:
        scope.b.nodes[-1].output[0] = "Y"
