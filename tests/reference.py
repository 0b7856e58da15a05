"""SparseAttention in float64 numpy, straight from its contract: the truth of the operator's tests.

It loops over batches, heads and query blocks and forms every term of a row's softmax; nothing here
resembles the function body or a kernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Attributes:
    """The operator's attributes with their neutral values."""

    q_block: int = 64
    k_block: int = 64
    scale: float = 1.0
    softcap: float = 0.0
    is_causal: int = 0
    left_window_size: int = -1
    right_window_size: int = -1
    residual: int = 0
    residual_block: int = 0

    @classmethod
    def of(cls, values: Mapping[str, int | float]) -> "Attributes":
        """From a node's attributes; those not named are neutral."""
        floats = {"scale", "softcap"}
        return cls(**{k: float(v) if k in floats else int(v) for k, v in values.items()})  # type: ignore[arg-type]

    @property
    def group(self) -> int:
        """Keys per residual group."""
        return self.residual_block or self.k_block


@dataclass(frozen=True)
class Head:
    """One head of one batch item: what its rows attend to."""

    q: Array
    """[Sq, D]"""
    k: Array
    """[Sk, D]"""
    v: Array
    """[Sk, Dv]"""
    allowed: Bools
    """[Sq, Sk]"""
    bias: Array
    """[Sq, Sk]"""
    kept: Bools
    """[Nq, Sk]: the keys each query block keeps."""
    sink: float


def sparse_attention(inputs: Mapping[str, npt.NDArray[np.generic]], a: Attributes) -> Array:
    """Y [B, Hq, Sq, Dv] of the inputs that are present; a missing input is neutral."""
    batch, heads, rows, _ = inputs["Q"].shape
    out = np.zeros((batch, heads, rows, inputs["V"].shape[3]))
    for b in range(batch):
        for h in range(heads):
            head = _head(inputs, a, b, h)
            for block, start in enumerate(range(0, rows, a.q_block)):
                span = slice(start, min(start + a.q_block, rows))
                out[b, h, span] = _query_block(head, a, block, span)
    return out


# One head ---------------------------------------------------------------------------------------


def _head(inputs: Mapping[str, npt.NDArray[np.generic]], a: Attributes, b: int, h: int) -> Head:
    heads, rows = inputs["Q"].shape[1:3]
    kv_heads, keys = inputs["K"].shape[1:3]
    kv = h // (heads // kv_heads)
    bias = np.zeros((rows, keys))
    if "attn_bias" in inputs:
        bias = _full(inputs["attn_bias"], b, h, rows, keys).astype(np.float64)
    sinks = inputs.get("sinks", np.array([-np.inf]))
    return Head(
        q=inputs["Q"][b, h].astype(np.float64),
        k=inputs["K"][b, kv].astype(np.float64),
        v=inputs["V"][b, kv].astype(np.float64),
        allowed=_allowed(inputs, a, b, h, rows, keys) & ~np.isneginf(bias),
        bias=bias,
        kept=_kept(inputs, a, b, h, rows, keys),
        sink=float(sinks[h % len(sinks)]),
    )


def _full(
    x: npt.NDArray[np.generic], b: int, h: int, rows: int, keys: int
) -> npt.NDArray[np.generic]:
    """Give the [Sq, Sk] part of a mask that broadcasts to [B, Hq, Sq, Sk]."""
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    return np.broadcast_to(x[b % x.shape[0], h % x.shape[1]], (rows, keys))


def _allowed(
    inputs: Mapping[str, npt.NDArray[np.generic]],
    a: Attributes,
    b: int,
    h: int,
    rows: int,
    keys: int,
) -> Bools:
    """Everything that forbids, except an infinite bias: [Sq, Sk]."""
    result = np.ones((rows, keys), np.bool_)
    if "attn_mask" in inputs:
        result &= _full(inputs["attn_mask"], b, h, rows, keys).astype(np.bool_)
    offsets = inputs.get("query_offset", np.array([0]))
    lengths = inputs.get("key_lengths", np.array([keys]))
    position = int(offsets[b % len(offsets)]) + np.arange(rows)[:, None]
    key = np.arange(keys)
    if a.is_causal:
        result &= key <= position
    if a.left_window_size >= 0:
        result &= key >= position - a.left_window_size
    if a.right_window_size >= 0:
        result &= key <= position + a.right_window_size
    return result & (key < int(lengths[b % len(lengths)]))


def _kept(
    inputs: Mapping[str, npt.NDArray[np.generic]],
    a: Attributes,
    b: int,
    h: int,
    rows: int,
    keys: int,
) -> Bools:
    """Give the keys of the blocks that each query block keeps: [Nq, Sk]."""
    blocks = -(-rows // a.q_block)
    result = np.zeros((blocks, keys), np.bool_)
    if "block_indices" not in inputs:
        return ~result
    indices, counts = inputs["block_indices"], inputs["block_count"]
    for block in range(blocks):
        count = int(_pick(counts, b, h, block))
        if count < 0:
            result[block] = True
            continue
        for key_block in _pick(indices, b, h, block)[:count]:
            if key_block >= 0:
                start = int(key_block) * a.k_block
                result[block, start : start + a.k_block] = True
    return result


def _pick(x: npt.NDArray[np.generic], b: int, h: int, block: int) -> npt.NDArray[np.generic]:
    picked: npt.NDArray[np.generic] = x[b % x.shape[0], h % x.shape[1], block % x.shape[2]]
    return picked


# One query block --------------------------------------------------------------------------------


def _query_block(head: Head, a: Attributes, block: int, span: slice) -> Array:
    """Give the output rows of one query block."""
    computed = head.kept[block].copy()
    logits, values = [], []
    for start in range(0, len(head.k), a.group) if a.residual else ():
        group = np.arange(start, min(start + a.group, len(head.k)))
        allowed = head.allowed[span][:, group]
        if np.any(allowed.any(axis=0) & ~allowed.all(axis=0)):
            computed[group] = True
            continue
        left = group[allowed[0] & ~head.kept[block, group]]
        if len(left):
            logits.append(_pseudo_logits(head, a, span, left)[:, None])
            values.append(head.v[left].mean(axis=0)[None])
    keys = np.flatnonzero(computed)
    scores = _softcap(a, a.scale * head.q[span] @ head.k[keys].T) + head.bias[span][:, keys]
    logits.append(np.where(head.allowed[span][:, keys], scores, -np.inf))
    values.append(head.v[keys])
    return _softmax(np.concatenate(logits, axis=1), np.concatenate(values), head.sink)


def _pseudo_logits(head: Head, a: Attributes, span: slice, left: npt.NDArray[np.int64]) -> Array:
    """Give the logit of the pseudo-key that stands for the keys `left`, per row."""
    q, k, n = head.q[span], head.k[left], len(left)
    gain = np.log(np.mean(np.exp(head.bias[span][:, left]), axis=1)) + np.log(n)
    logits: Array = _softcap(a, a.scale * q @ k.mean(axis=0)) + gain
    if a.residual == 2:
        s2 = a.scale**2 * np.sum(q * q, axis=1) * np.mean(np.var(k, axis=0))
        logits = logits + np.minimum(0.5 * s2, np.sqrt(s2) * np.sqrt(n - 1))
    return logits


def _softcap(a: Attributes, x: Array) -> Array:
    capped: Array = a.softcap * np.tanh(x / a.softcap) if a.softcap > 0 else x
    return capped


def _softmax(logits: Array, values: Array, sink: float) -> Array:
    """Softmax with a sink, times values; rows whose every logit is -inf are zeros."""
    out = np.zeros((len(logits), values.shape[1]))
    for i, row in enumerate(logits):
        if row.size == 0 or np.all(np.isneginf(row)):
            continue
        peak = max(float(np.max(row)), sink)
        weights = np.exp(row - peak)
        out[i] = weights @ values / (weights.sum() + np.exp(sink - peak))
    return out
