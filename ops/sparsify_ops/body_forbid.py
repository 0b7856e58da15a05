"""Which keys masks and limits forbid: one boolean, broadcastable to [B, Hq, Sq, Sk]."""

from functools import reduce

import numpy as np

from sparsify_ops.body_scope import FAR, Scope

ROW_FEATURES = frozenset({"attn_mask", "attn_bias", "causal", "window"})
"""Features that can treat two rows of one query block differently."""


def allowed(scope: Scope) -> str | None:
    """Find where no mask, limit or length forbids the key; None where nothing can.

    An attn_bias of -inf is left to the addition that follows, except that residual groups need it.
    """
    parts = []
    if "attn_mask" in scope.uses:
        parts.append("attn_mask")
    parts += _interval(scope)
    if "attn_bias" in scope.uses and has_residual(scope):
        parts.append(_finite_bias(scope))
    return reduce(lambda x, y: scope.b.op("And", x, y), parts) if parts else None


def has_residual(scope: Scope) -> bool:
    """Whether keys can be left out and answer through pseudo-keys."""
    return {"selection", "residual"} <= scope.uses


def by_row(scope: Scope) -> bool:
    """Whether rows of one query block can be treated differently."""
    return bool(ROW_FEATURES & scope.uses)


def _finite_bias(scope: Scope) -> str:
    minus_inf = scope.b.scalar(-np.inf)
    return scope.b.op("Not", scope.b.op("Equal", scope.bias, minus_inf))


def _interval(scope: Scope) -> list[str]:
    parts = []
    if {"causal", "window"} & scope.uses:
        position = _positions(scope)
        parts.append(scope.b.op("LessOrEqual", scope.keys, _last_key(scope, position)))
        if "window" in scope.uses:
            parts.append(scope.b.op("GreaterOrEqual", scope.keys, _first_key(scope, position)))
    if "key_lengths" in scope.uses:
        lengths = scope.b.unsqueeze("key_lengths", [1, 2, 3])
        parts.append(scope.b.op("Less", scope.keys, lengths))
    return parts


def _positions(scope: Scope) -> str:
    """Give the position of every query: [Sq, 1], or [B or 1, 1, Sq, 1] with query_offset."""
    rows = scope.b.unsqueeze(scope.rows, [1])
    if "query_offset" not in scope.uses:
        return rows
    return scope.b.op("Add", scope.b.unsqueeze("query_offset", [1, 2, 3]), rows)


def _last_key(scope: Scope, position: str) -> str:
    """Give the last key each query may see, as `position`."""
    limits = []
    if "causal" in scope.uses:
        limits.append(_switch(scope, _positive(scope, "is_causal", 0), position, FAR))
    if "window" in scope.uses:
        size = scope.int_attribute("right_window_size")
        on = scope.b.op("Greater", size, scope.integer(-1))
        limits.append(_switch(scope, on, scope.b.op("Add", position, size), FAR))
    return limits[0] if len(limits) == 1 else scope.b.op("Min", *limits)


def _first_key(scope: Scope, position: str) -> str:
    """Give the first key each query may see, as `position`."""
    size = scope.int_attribute("left_window_size")
    on = scope.b.op("Greater", size, scope.integer(-1))
    return _switch(scope, on, scope.b.op("Sub", position, size), -FAR)


def _positive(scope: Scope, attribute: str, bound: int) -> str:
    return scope.b.op("Greater", scope.int_attribute(attribute), scope.integer(bound))


def _switch(scope: Scope, on: str, limit: str, otherwise: int) -> str:
    return scope.b.op("Where", on, limit, scope.integer(otherwise))
