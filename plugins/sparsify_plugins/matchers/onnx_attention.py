"""The standard operator Attention of ai.onnx 23 and later, read as it is specified.

Source: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sparsify.constants import dims
from sparsify.layout import Merge, Split, Transpose
from sparsify.site import Mask, Operand, Refusal, Site
from sparsify.view import FLOATS, Node, Scope, Tensor, consumers, element_type, label

_BOOL = 9
_Q, _K, _V, _MASK = range(4)
_LATER_INPUTS = ("past_key", "past_value", "nonpad_kv_seqlen")


@dataclass(frozen=True)
class OnnxAttentionMatcher:
    """Takes Attention nodes without a cache as sites."""

    def match(self, scope: Scope) -> Iterator[Site | Refusal]:
        """One site or one refusal for each Attention node."""
        for node in scope.nodes():
            if node.op == "Attention" and node.domain in (None, "", "ai.onnx"):
                reason = _obstacle(scope, node)
                if reason is None:
                    yield _site(scope, node)
                else:
                    yield Refusal(reason[0], reason[1], scope.name, (label(node),))


MATCHER = OnnxAttentionMatcher()


def _obstacle(scope: Scope, node: Node) -> tuple[str, str] | None:
    for index, name in enumerate(_LATER_INPUTS, start=_MASK + 1):
        if _input(node, index) is not None:
            return "cache_unsupported", f"its input {name} is not supported yet"
    for tensor in node.outputs[1:]:
        if tensor.name and (consumers(tensor) or tensor.name in scope.outputs):
            return "probabilities_shared", f"its output {tensor.name} is used"
    sizes = [dims(node.inputs[index]) for index in (_Q, _K, _V)]
    ranks = {len(known) for known in sizes if known is not None}
    if len(ranks) != 1 or ranks.isdisjoint({3, 4}):
        return "rank_unsupported", "the rank of Q, K and V is not known to be 3 or 4"
    if ranks == {3} and not (node.attrs.get("q_num_heads") and node.attrs.get("kv_num_heads")):
        return "rank_unsupported", "three dimensions need q_num_heads and kv_num_heads"
    types = {element_type(node.inputs[index]) for index in (_Q, _K, _V)}
    if len(types) != 1 or not types <= set(FLOATS):
        return "mixed_dtype", "Q, K and V are not of one known float type"
    if None in (_heads(node, _Q, "q_num_heads")[1], _heads(node, _K, "kv_num_heads")[1]):
        return "heads_unknown", "the number of heads is not fixed"
    if _scale(node, _heads(node, _Q, "q_num_heads")[3]) is None:
        return "scale_unknown", "head_dim, and with it the default scale, is not known"
    return None


def _site(scope: Scope, node: Node) -> Site:
    q, k, v = (_heads(node, index, name) for index, name in _OPERANDS)
    three = len(dims(node.inputs[_Q]) or ()) == 3
    scale = _scale(node, q[3])
    mask = _input(node, _MASK)
    return Site(
        name=label(node),
        scope=scope.name,
        matcher="onnx_attention",
        query=_operand(node, _Q, "q_num_heads", three),
        key=_operand(node, _K, "kv_num_heads", three),
        value=_operand(node, _V, "kv_num_heads", three),
        output=node.outputs[0].name,
        scale=scale if scale is not None else 1.0,
        element_type=element_type(node.inputs[_Q]) or FLOATS[0],
        nodes=(label(node),),
        masks=() if mask is None else (_mask(mask),),
        causal=bool(node.attrs.get("is_causal", 0)),
        left_window=int(node.attrs.get("left_window_size", -1)),
        right_window=int(node.attrs.get("right_window_size", -1)),
        softcap=float(node.attrs.get("softcap", 0.0)),
        group=q[1] // k[1] if q[1] and k[1] else 1,
        q_heads=q[1],
        kv_heads=k[1],
        q_length=q[2],
        k_length=k[2],
        head_dim=q[3],
        value_dim=v[3],
        batch=q[0],
        result=(Transpose((0, 2, 1, 3)), Merge(2, 4)) if three else (),
    )


_OPERANDS = ((_Q, "q_num_heads"), (_K, "kv_num_heads"), (_V, "kv_num_heads"))


def _input(node: Node, index: int) -> Tensor | None:
    present = index < len(node.inputs) and bool(node.inputs[index].name)
    return node.inputs[index] if present else None


def _heads(node: Node, index: int, attribute: str) -> tuple[int | None, ...]:
    """The sizes `[batch, heads, length, dim]` of one operand, None where open."""
    sizes = dims(node.inputs[index]) or (None,) * 4
    if len(sizes) == 4:
        return sizes
    batch, length, hidden = sizes
    heads = int(node.attrs[attribute])
    return batch, heads, length, None if hidden is None else hidden // heads


def _operand(node: Node, index: int, attribute: str, three: bool) -> Operand:
    name = node.inputs[index].name
    if not three:
        return Operand(name)
    split = Split(2, 3, outer=int(node.attrs[attribute]))
    return Operand(name, (split, Transpose((0, 2, 1, 3))))


def _scale(node: Node, head_dim: int | None) -> float | None:
    if "scale" in node.attrs:
        return float(node.attrs["scale"])
    return None if head_dim is None else float(head_dim) ** -0.5


def _mask(tensor: Any) -> Mask:
    kind = element_type(tensor) or _BOOL
    sizes = dims(tensor) or (None,) * 4
    return Mask("keep" if kind == _BOOL else "add", Operand(tensor.name), kind, sizes=sizes)
