"""Scores of real keys, and what is added to them to forbid keys: the additive mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from sparsify_ops.body_forbid import by_row
from sparsify_ops.body_scope import Scope

NO_SOFTCAP = 2.0**40
"""c * tanh(x / c) is x to rounding for so large a c, so softcap 0 costs no branch."""


@dataclass(frozen=True)
class Mask:
    """The sum of bias and forbidding."""

    added: str
    """0, a bias or -inf, broadcastable to [B, Hq, Sq, Sk]."""
    empty: str
    """bool [.., Sq or 1, 1]: rows in which every key is forbidden."""


def scores(scope: Scope) -> str:
    """Compute softcap(scale * q.k), [B, Hq, Sq, Sk]."""
    product = scope.b.op(
        "MatMul", to_kv_heads(scope, scope.q), scope.b.transpose(scope.k, [0, 1, 3, 2])
    )
    return softcapped(scope, to_query_heads(scope, product))


def softcapped(scope: Scope, x: str) -> str:
    """Cap scores: softcap * tanh(x / softcap), or x where softcap is 0."""
    if "softcap" not in scope.uses:
        return x
    b = scope.b
    given = scope.float_attribute("softcap")
    on = b.op("Greater", given, b.scalar(0))
    cap = b.op("Where", on, given, b.scalar(NO_SOFTCAP))
    return b.op("Mul", b.op("Tanh", b.op("Div", x, cap)), cap)


def additive_mask(scope: Scope, allowed: str | None, kept: str | None) -> Mask | None:
    """Give what forbids and biases scores; None where nothing does.

    `kept` is bool [b, h, Nq or 1, Sk]. Where all rows of a query block are treated alike, the mask
    is made per block and its rows are then repeated, which is the smaller work.
    """
    if kept is None:
        return _mask(scope, allowed)
    if by_row(scope):
        rows = scope.to_rows(kept)
        return _mask(scope, rows if allowed is None else scope.b.op("And", allowed, rows))
    small = _mask(scope, kept if allowed is None else scope.b.op("And", allowed, kept))
    assert small is not None
    return Mask(scope.to_rows(small.added), scope.to_rows(small.empty))


def _mask(scope: Scope, computed: str | None) -> Mask | None:
    biased = "attn_bias" in scope.uses
    if computed is None and not biased:
        return None
    added = scope.bias if biased else scope.b.scalar(0)
    reductions = ("ReduceMax", "ReduceSum") if biased else ("ReduceMax",)
    if computed is not None:
        added = scope.b.op("Where", computed, added, scope.b.scalar(-np.inf))
    return Mask(added, _empty(scope, added, reductions))


def _empty(scope: Scope, added: str, reductions: Sequence[str]) -> str:
    """Rows of `added` with nothing but -inf, by reductions that are all -inf for such rows only.

    ReduceMax may pass over a NaN, which does not forbid its key; ReduceSum does not.
    """
    b = scope.b
    tests = [
        b.op("Equal", b.reduce(op, added, [-1], keepdims=True), b.scalar(-np.inf))
        for op in reductions
    ]
    return reduce(lambda x, y: b.op("And", x, y), tests)


def to_kv_heads(scope: Scope, x: str) -> str:
    """[B, Hq, Sq, n] as [B, Hkv, Hq / Hkv * Sq, n], the layout in which K and V need no copies."""
    if "gqa" not in scope.uses:
        return x
    b = scope.b
    return b.reshape(x, b.concat([b.dims("K", 0, 1), b.ints(-1), b.dims(x, 3)], 0))


def to_query_heads(scope: Scope, x: str) -> str:
    """Give the inverse of `to_kv_heads`."""
    if "gqa" not in scope.uses:
        return x
    b = scope.b
    return b.reshape(x, b.concat([b.dims("Q", 0, 1, 2), b.dims(x, 3)], 0))
