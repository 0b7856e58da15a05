"""The standard operator Attention of ai.onnx 23 and later, read as it is specified.

Source: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sparsify.constants import Dims, dims
from sparsify.layout import Step, emit_steps
from sparsify.site import Mask, Operand, Refusal, Site
from sparsify.view import FLOATS, Node, Scope, Tensor, element_type, label
from sparsify_plugins.matchers.fused import (
    BOOL,
    FLOAT,
    INT64,
    JOINED,
    Obstacle,
    Prologue,
    cache_names,
    extended,
    optional,
    prologue,
    refusal,
    score_mask,
    score_names,
    split_heads,
    total,
    used,
)

_Q, _K, _V, _MASK, _PAST_KEY, _PAST_VALUE, _NONPAD = range(7)
_PRESENT_KEY, _PRESENT_VALUE, _PRODUCT = range(1, 4)
_HEADS = {_Q: "q_num_heads", _K: "kv_num_heads", _V: "kv_num_heads"}

_PADS_MASKS = 24
"""The opset from which on a mask may be shorter than the keys."""


@dataclass(frozen=True)
class OnnxAttentionMatcher:
    """Takes every Attention node whose probabilities nobody reads."""

    def match(self, scope: Scope) -> Iterator[Site | Refusal]:
        """One site or one refusal for each Attention node."""
        for node in scope.nodes():
            if node.op == "Attention" and node.domain in (None, "", "ai.onnx"):
                obstacle = _obstacle(scope, node)
                yield _site(scope, node) if obstacle is None else refusal(scope, node, obstacle)


MATCHER = OnnxAttentionMatcher()


def _obstacle(scope: Scope, node: Node) -> Obstacle | None:
    if used(scope, node, _PRODUCT):
        return "probabilities_shared", f"its output {node.outputs[_PRODUCT].name} is used"
    sizes = [dims(node.inputs[index]) for index in _HEADS]
    ranks = {len(known) for known in sizes if known is not None}
    if len(ranks) != 1 or ranks.isdisjoint({3, 4}):
        return "rank_unsupported", "the rank of Q, K and V is not known to be 3 or 4"
    if ranks == {3} and not (node.attrs.get("q_num_heads") and node.attrs.get("kv_num_heads")):
        return "rank_unsupported", "three dimensions need q_num_heads and kv_num_heads"
    types = {element_type(node.inputs[index]) for index in _HEADS}
    if len(types) != 1 or not types <= set(FLOATS):
        return "mixed_dtype", "Q, K and V are not of one known float type"
    if None in (_sizes(node, _Q)[1], _sizes(node, _K)[1]):
        return "heads_unknown", "the number of heads is not fixed"
    if _scale(node, _sizes(node, _Q)[3]) is None:
        return "scale_unknown", "head_dim, and with it the default scale, is not known"
    if optional(node, _NONPAD) is not None and optional(node, _PAST_KEY) is not None:
        return "cache_unsupported", "it has both a past_key and nonpad_kv_seqlen"
    return None


def _site(scope: Scope, node: Node) -> Site:
    q, k, v = (_sizes(node, index) for index in _HEADS)
    before = prologue(scope, node)
    positions = _positions(node, before)
    lengths = optional(node, _NONPAD)
    scale = _scale(node, q[3])
    key, value = (_cached(scope, node, before, index) for index in (_K, _V))
    k_length = _total_length(node)
    return Site(
        name=label(node),
        scope=scope.name,
        matcher="onnx_attention",
        query=Operand(node.inputs[_Q].name, _steps(node, _Q)),
        key=key,
        value=value,
        output=node.outputs[0].name,
        scale=scale if scale is not None else 1.0,
        element_type=element_type(node.inputs[_Q]) or FLOATS[0],
        nodes=(label(node),),
        masks=_masks(scope, node, before),
        causal=bool(node.attrs.get("is_causal", 0)),
        left_window=int(node.attrs.get("left_window_size", -1)),
        right_window=int(node.attrs.get("right_window_size", -1)),
        softcap=float(node.attrs.get("softcap", 0.0)),
        group=q[1] // k[1] if q[1] and k[1] else 1,
        q_heads=q[1],
        kv_heads=k[1],
        q_length=q[2],
        k_length=k_length,
        head_dim=q[3],
        value_dim=v[3],
        batch=q[0],
        result=JOINED if _steps(node, _Q) else (),
        query_offset=positions,
        key_lengths="" if lengths is None else lengths.name,
        before=tuple(before.builder.nodes),
        given=tuple(before.given.values()),
        also=tuple(before.also),
    )


def _sizes(node: Node, index: int) -> Dims:
    """The sizes `[batch, heads, length, dim]` of one operand, None where open."""
    sizes = dims(node.inputs[index]) or (None,) * 4
    if len(sizes) == 4:
        return sizes
    batch, length, hidden = sizes
    heads = int(node.attrs[_HEADS[index]])
    return batch, heads, length, None if hidden is None else hidden // heads


def _steps(node: Node, index: int) -> tuple[Step, ...]:
    if any(len(dims(node.inputs[i]) or ()) == 4 for i in _HEADS):
        return ()
    return split_heads(int(node.attrs[_HEADS[index]]))


def _scale(node: Node, head_dim: int | None) -> float | None:
    if "scale" in node.attrs:
        return float(node.attrs["scale"])
    return None if head_dim is None else float(head_dim) ** -0.5


# Caches ---------------------------------------------------------------------------------------


def _past_length(node: Node) -> int | None:
    """The length of the cache: 0 where there is none, None where it is open."""
    past = optional(node, _PAST_KEY)
    return 0 if past is None else (dims(past) or (None,) * 4)[2]


def _total_length(node: Node) -> int | None:
    return total(_past_length(node), _sizes(node, _K)[2])


def _cached(scope: Scope, node: Node, before: Prologue, index: int) -> Operand:
    """K or V with the cache before it; the two together are the present output."""
    output = _PRESENT_KEY if index == _K else _PRESENT_VALUE
    past = optional(node, _PAST_KEY if index == _K else _PAST_VALUE)
    steps = _steps(node, index)
    if past is None and not used(scope, node, output):
        return Operand(node.inputs[index].name, steps)
    present = emit_steps(before.builder, _read_new(node, before, index), steps)
    if past is not None:
        name, _ = cache_names(_past_length(node), _sizes(node, index)[2])
        sizes = ("batch", "kv_heads", name, _dim(index))
        present = before.builder.concat([before.read(past, sizes), present], 2)
    before.makes(scope, node, output, present)
    return Operand(present)


def _read_new(node: Node, before: Prologue, index: int) -> str:
    if optional(node, _PAST_KEY) is None:
        length: int | str = "k_length"
    else:
        length = cache_names(_past_length(node), _sizes(node, index)[2])[1]
    if _steps(node, index):
        return before.read(node.inputs[index], ("batch", length, f"kv_heads*{_dim(index)}"))
    return before.read(node.inputs[index], ("batch", "kv_heads", length, _dim(index)))


def _dim(index: int) -> str:
    return "head_dim" if index == _K else "value_dim"


# Positions and masks --------------------------------------------------------------------------


def _positions(node: Node, before: Prologue) -> str:
    """Where the first query stands: behind the cache, or so that the last is the last key."""
    lengths, past = optional(node, _NONPAD), optional(node, _PAST_KEY)
    if lengths is not None:
        before.read(lengths, ("batch",), "lengths", INT64)
    windows = (node.attrs.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if not node.attrs.get("is_causal", 0) and max(windows) < 0:
        return ""
    if lengths is not None:
        queries = before.builder.dims(node.inputs[_Q].name, 1 if _steps(node, _Q) else 2)
        return before.builder.op("Sub", lengths.name, queries)
    return "" if past is None else before.builder.dims(past.name, 2)


def _masks(scope: Scope, node: Node, before: Prologue) -> tuple[Mask, ...]:
    mask = optional(node, _MASK)
    if mask is None:
        return ()
    if scope.opset < _PADS_MASKS or _fits(node, mask):
        return (score_mask(mask),)
    return (_padded(node, before, mask),)


def _fits(node: Node, mask: Tensor) -> bool:
    """Whether the graph says that the mask is as long as the keys."""
    length = (dims(mask) or (None,))[-1]
    if length is not None and length == _total_length(node):
        return True
    if optional(node, _PAST_KEY) is not None or not mask.shape or not node.inputs[_K].shape:
        return False
    symbol = mask.shape[-1]
    keys = node.inputs[_K].shape[1 if _steps(node, _K) else 2]
    return isinstance(symbol, str) and bool(symbol) and symbol == keys


def _padded(node: Node, before: Prologue, mask: Tensor) -> Mask:
    """The mask with what forbids appended up to the number of keys."""
    builder, sizes = before.builder, dims(mask)
    kind = element_type(mask) or BOOL
    if sizes is None:
        return score_mask(mask)
    name = before.read(mask, score_names(sizes), "mask" if kind == BOOL else "bias", kind)
    if kind not in (BOOL, FLOAT):
        name, kind = builder.cast(name, FLOAT), FLOAT  # ONNX Runtime expands few types
    fill = builder.constant(False, bool) if kind == BOOL else builder.scalar(float("-inf"))
    last = len(sizes) - 1
    missing = builder.op("Sub", _keys(node, before), builder.dims(name, last))
    padded = extended(builder, name, len(sizes), missing, fill)
    kept = "keep" if kind == BOOL else "add"
    return Mask(kept, Operand(padded), kind, sizes=(*sizes[:-1], _total_length(node)))


def _keys(node: Node, before: Prologue) -> str:
    """The number of keys, those in the cache included."""
    builder = before.builder
    keys = builder.dims(node.inputs[_K].name, 1 if _steps(node, _K) else 2)
    past = optional(node, _PAST_KEY)
    return keys if past is None else builder.op("Add", builder.dims(past.name, 2), keys)
