"""Left-out keys: one pseudo-key per query block and group, with its logit and its value."""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from sparsify_ops.body_forbid import by_row
from sparsify_ops.body_scope import Scope
from sparsify_ops.body_scores import softcapped


@dataclass(frozen=True)
class Groups:
    """Which keys each query block leaves out. `n` is Nq, or 1 where all query blocks agree."""

    computed: str
    """bool [b, h, Nq or 1, Sk]: keys kept, or in a mixed group."""
    members: str
    """float [b, h, n, NG, g]: 1 for a key left out."""
    count: str
    """float [b, h, n, NG]: how many they are, at least 1."""
    alive: str
    """bool [b, h, Nq or 1, NG]: the group answers through its pseudo-key."""


@dataclass(frozen=True)
class PseudoKeys:
    """One more key per group, different for every query block."""

    logits: str
    """[B, Hq, Sq, NG]."""
    values: str
    """[B, Hq, n, NG, Dv]."""


def find_groups(scope: Scope, allowed: str | None, blocks: str, kept: str) -> Groups:
    """Divide the keys of every query block into computed, left out and forbidden ones.

    `blocks` and `kept` are the selection per key block and per key.
    """
    b = scope.b
    everywhere, mixed = _agreement(scope, allowed)
    gone = [] if mixed is None else [mixed]
    if "gathered" in scope.uses:
        everywhere = b.op("And", everywhere, b.op("Not", kept))
    else:
        gone.append(blocks)
    members = _members(scope, everywhere)
    count = b.reduce("ReduceSum", members, [4], keepdims=False)
    alive = b.op("And", b.op("Greater", count, b.scalar(0)), _residual_on(scope))
    for reason in gone:
        alive = b.op("And", alive, b.op("Not", reason))
    return Groups(
        computed=kept if mixed is None else b.op("Or", kept, _group_keys(scope, mixed)),
        members=members,
        count=b.op("Max", count, b.scalar(1)),
        alive=alive,
    )


def pseudo_keys(scope: Scope, groups: Groups) -> PseudoKeys:
    """Logits and values of the groups left out."""
    b = scope.b
    k = scope.by_group(_per_query_head(scope, scope.k), 4, 2)
    center = _center(scope, groups, k)
    shifted = b.op("Sub", k, center)
    offset = _mean(scope, groups, shifted)
    k_mean = b.op("Add", b.transpose(center, [0, 1, 3, 2, 4]), offset)
    v = scope.by_group(_per_query_head(scope, scope.v), 4, 2)
    variance = _variance(scope, groups, shifted, offset) if "iso" in scope.uses else None
    return PseudoKeys(_logits(scope, groups, k_mean, variance), _mean(scope, groups, v))


def residual_output(scope: Scope, pseudo: PseudoKeys, weights: str) -> str:
    """Weigh the pseudo-values with softmax weights [B, Hq, Sq, NG]: [B, Hq, Sq, Dv]."""
    blocks = scope.by_query_block(weights)
    return scope.from_query_block(scope.b.op("MatMul", blocks, pseudo.values))


# Groups -----------------------------------------------------------------------------------------


def _agreement(scope: Scope, allowed: str | None) -> tuple[str, str | None]:
    """Keys allowed for all rows of a query block, [b, h, Nq or 1, Sk]; mixed groups, [.., NG]."""
    b = scope.b
    if allowed is None:
        allowed = b.constant(True, np.bool_)
    if not by_row(scope):
        return b.op("Expand", allowed, _shape(scope, scope.integer(1))), None
    full = b.op("Expand", allowed, _shape(scope, scope.sq))
    rows = scope.by_query_block(b.cast(full, TensorProto.FLOAT))
    lowest = b.reduce("ReduceMin", rows, [3], keepdims=False)
    highest = b.reduce("ReduceMax", rows, [3], keepdims=False)
    differ = scope.by_group(b.op("Sub", highest, lowest), 4, 3)
    mixed = b.op("Greater", b.reduce("ReduceMax", differ, [4], keepdims=False), b.scalar(0))
    return b.cast(lowest, TensorProto.BOOL), b.op("And", mixed, _residual_on(scope))


def _residual_on(scope: Scope) -> str:
    return scope.b.op("Greater", scope.residual, scope.integer(0))


def _shape(scope: Scope, rows: str) -> str:
    return scope.b.concat([scope.b.ints(1, 1), scope.one(rows), scope.one(scope.sk)], 0)


def _members(scope: Scope, left: str) -> str:
    """`left` per key [b, h, n, Sk] as float [b, h, n, NG, g], with 0 beyond the last key."""
    b = scope.b
    places = b.arange(b.op("Mul", scope.groups, scope.group))
    exists = b.op("Less", places, scope.sk)
    padded = b.op("And", b.gather(left, scope.padded_keys, 3), exists)
    return scope.split(b.cast(padded, TensorProto.FLOAT), 4, 3, scope.groups, scope.group)


def _group_keys(scope: Scope, groups: str) -> str:
    """[.., NG] as [.., Sk]."""
    return scope.b.gather(groups, scope.b.op("Div", scope.keys, scope.group), 3)


# Statistics -------------------------------------------------------------------------------------


def _per_query_head(scope: Scope, x: str) -> str:
    """[B, Hkv, Sk, n] as [B, Hq, Sk, n]."""
    if "gqa" not in scope.uses:
        return x
    b = scope.b
    heads = b.dim("Q", 1)
    share = b.op("Div", heads, b.dim("K", 1))
    return b.gather(x, b.op("Div", b.arange(heads), share), 1)


def _mean(scope: Scope, groups: Groups, x: str) -> str:
    """Give the mean of `x` [B, Hq, NG, g, m] over the keys left out: [B, Hq, n, NG, m]."""
    b = scope.b
    total = b.op("MatMul", b.transpose(groups.members, [0, 1, 3, 2, 4]), x)
    return b.op("Div", b.transpose(total, [0, 1, 3, 2, 4]), b.unsqueeze(groups.count, [4]))


def _center(scope: Scope, groups: Groups, k: str) -> str:
    """Give the mean over keys that any query block leaves out, [B, Hq, NG, 1, D].

    Sums are taken around it, so that they lose no digits to a common offset of the keys.
    """
    b = scope.b
    anyone = b.transpose(b.reduce("ReduceMax", groups.members, [2], keepdims=True), [0, 1, 3, 2, 4])
    count = b.op("Max", b.reduce("ReduceSum", anyone, [4], keepdims=True), b.scalar(1))
    return b.op("Div", b.op("MatMul", anyone, k), count)


def _variance(scope: Scope, groups: Groups, shifted: str, offset: str) -> str:
    """Give the mean over D of the variance of the keys left out: [B, Hq, n, NG, 1]."""
    b = scope.b
    squares = b.reduce("ReduceMean", b.op("Mul", shifted, shifted), [4], keepdims=True)
    of_mean = b.reduce("ReduceMean", b.op("Mul", offset, offset), [4], keepdims=True)
    spread = b.op("Sub", _mean(scope, groups, squares), of_mean)
    return b.op("Max", spread, b.scalar(0))


# Logits -----------------------------------------------------------------------------------------


def _logits(scope: Scope, groups: Groups, k_mean: str, variance: str | None) -> str:
    """[B, Hq, Sq, NG], -inf where the group does not answer."""
    b = scope.b
    q = scope.by_query_block(scope.q)
    logits = softcapped(scope, b.op("MatMul", q, b.transpose(k_mean, [0, 1, 2, 4, 3])))
    logits = b.op("Add", logits, b.op("Log", b.unsqueeze(groups.count, [3])))
    if "attn_bias" in scope.uses:
        logits = b.op("Add", logits, _bias(scope, groups))
    if variance is not None:
        logits = b.op("Add", logits, _iso(scope, groups, q, variance))
    alive = b.unsqueeze(groups.alive, [3])
    return scope.from_query_block(b.op("Where", alive, logits, b.scalar(-np.inf)))


def _iso(scope: Scope, groups: Groups, q: str, variance: str) -> str:
    """min(0.5 * s2, s * sqrt(n - 1)) with s2 = |scale * q|^2 * var: [B, Hq, n, q_block, NG]."""
    b = scope.b
    length = b.reduce("ReduceSum", b.op("Mul", q, q), [4], keepdims=True)
    s2 = b.op("Mul", length, b.transpose(variance, [0, 1, 2, 4, 3]))
    others = b.op("Sub", b.unsqueeze(groups.count, [3]), b.scalar(1))
    most = b.op("Sqrt", b.op("Mul", s2, others))
    gain = b.op("Min", b.op("Mul", s2, b.scalar(0.5)), most)
    on = b.op("Equal", scope.residual, scope.integer(2))
    return b.op("Where", on, gain, b.scalar(0))


def _bias(scope: Scope, groups: Groups) -> str:
    """log(mean(exp(bias))) over the keys left out, per row: [b, h, Nq, q_block, NG]."""
    b = scope.b
    full = b.op("Expand", scope.bias, _shape(scope, scope.sq))
    rows = scope.by_group(scope.by_query_block(full), 5, 4)
    left = b.op("Greater", b.unsqueeze(groups.members, [3]), b.scalar(0))
    masked = b.op("Where", left, rows, b.scalar(-np.inf))
    lowest = b.scalar(float(np.finfo(np.float32).min))
    peak = b.op("Max", b.reduce("ReduceMax", masked, [5], keepdims=True), lowest)
    total = b.reduce("ReduceSum", b.op("Exp", b.op("Sub", masked, peak)), [5], keepdims=False)
    mean = b.op("Div", total, b.unsqueeze(groups.count, [3]))
    return b.op("Add", b.op("Log", mean), b.squeeze(peak, [5]))
