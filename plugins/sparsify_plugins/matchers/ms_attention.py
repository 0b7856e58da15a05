"""ONNX Runtime's Attention: the projections to Q, K and V are inside, with packed weights.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sparsify.constants import Dims, dims
from sparsify.layout import emit_steps
from sparsify.site import Operand, Refusal, Site
from sparsify.view import Node, Scope, label
from sparsify_plugins.matchers.fused import (
    JOINED,
    Obstacle,
    Prologue,
    float_type,
    optional,
    prologue,
    refusal,
    score_mask,
    split,
    split_heads,
    total,
    used,
)
from sparsify_plugins.matchers.ms_masks import mask_obstacle, mask_sizes, padding

_INPUT, _WEIGHTS, _BIAS, _MASK, _PAST, _SCORE_BIAS, _PAST_LENGTH = range(7)
_PRESENT = 1


@dataclass(frozen=True)
class PackedWeightsMatcher:
    """Takes every Attention of ONNX Runtime whose cache is its own."""

    def match(self, scope: Scope) -> Iterator[Site | Refusal]:
        """One site or one refusal for each node."""
        for node in scope.nodes():
            if node.op == "Attention" and node.domain == "com.microsoft":
                obstacle = _obstacle(node)
                if obstacle is None:
                    yield _site(scope, node, prologue(scope, node))
                else:
                    yield refusal(scope, node, obstacle)


MATCHER = PackedWeightsMatcher()


def _obstacle(node: Node) -> Obstacle | None:
    if node.attrs.get("past_present_share_buffer", 0) or optional(node, _PAST_LENGTH) is not None:
        return "shared_buffer_cache", "its cache is a buffer that past and present share"
    if node.attrs.get("do_rotary", 0):
        return "fused_unsupported", "it rotates Q and K, which ONNX Runtime's CPU does not do"
    if float_type(node) is None:
        return "mixed_dtype", "its float type is not known"
    widths = _widths(node)
    if widths is None or min(widths) < int(node.attrs["num_heads"]):
        return "heads_unknown", "how its weights are divided into Q, K, V and heads is not known"
    return mask_obstacle(node, optional(node, _MASK))


def _widths(node: Node) -> tuple[int, ...] | None:
    """The hidden sizes of Q, K and V."""
    given = node.attrs.get("qkv_hidden_sizes")
    if given:
        return tuple(int(size) for size in given)
    sizes = dims(node.inputs[_WEIGHTS])
    whole = sizes[-1] if sizes else None
    return None if whole is None else (whole // 3,) * 3


def _site(scope: Scope, node: Node, before: Prologue) -> Site:
    kind, heads = float_type(node) or 1, int(node.attrs["num_heads"])
    widths = _widths(node) or (heads,) * 3
    query, *new = _projected(node, before, widths, kind)
    past = optional(node, _PAST)
    key, value = _cached(scope, node, before, new, kind)
    causal = bool(node.attrs.get("unidirectional", 0))
    found = padding(
        node, before, optional(node, _MASK), kind, before.builder.dims(node.inputs[_INPUT].name, 0)
    )
    bias = optional(node, _SCORE_BIAS)
    batch, length = _outer(node)
    return Site(
        name=label(node),
        scope=scope.name,
        matcher="ms_attention",
        query=Operand(query, split_heads(heads)),
        key=key,
        value=value,
        output=node.outputs[0].name,
        scale=float(node.attrs.get("scale", 0.0)) or (widths[0] // heads) ** -0.5,
        element_type=kind,
        nodes=(label(node),),
        masks=(*found.masks, *(() if bias is None else (score_mask(bias),))),
        causal=causal,
        q_heads=heads,
        kv_heads=heads,
        q_length=length,
        k_length=total(_past_length(node), length),
        head_dim=widths[0] // heads,
        value_dim=widths[2] // heads,
        batch=batch,
        result=JOINED,
        query_offset=before.builder.dims(past.name, 3) if past is not None and causal else "",
        key_lengths=found.key_lengths,
        before=tuple(before.builder.nodes),
        given=tuple(before.given.values()),
        also=tuple(before.also),
    )


def _outer(node: Node) -> Dims:
    """Batch and length of the input, where it is open those of the mask."""
    batch, length = (dims(node.inputs[_INPUT]) or (None, None))[:2]
    mask = optional(node, _MASK)
    sizes = (mask_sizes(mask) if mask is not None else None) or (None,)
    if length is None and optional(node, _PAST) is None and len(sizes) > 1:
        length = sizes[-1]
    return (sizes[0] if batch is None and len(sizes) > 1 else batch), length


def _past_length(node: Node) -> int | None:
    past = optional(node, _PAST)
    return 0 if past is None else (dims(past) or (None,) * 5)[3]


def _projected(node: Node, before: Prologue, widths: tuple[int, ...], kind: int) -> list[str]:
    """Q, K and V as `[batch, length, width]`."""
    builder, whole = before.builder, sum(widths)
    outer = (dims(node.inputs[index]) for index in (_WEIGHTS, _INPUT))
    known = [sizes[0 if i == 0 else -1] for i, sizes in enumerate(outer) if sizes]
    rows: int | str = next((size for size in known if size is not None), "q_heads*head_dim")
    x = before.read(node.inputs[_INPUT], ("batch", "q_length", rows), kind=kind)
    weights = before.read(node.inputs[_WEIGHTS], (rows, whole), "weight", kind)
    projected = builder.op("MatMul", x, weights)
    bias = optional(node, _BIAS)
    if bias is not None:
        projected = builder.op("Add", projected, before.read(bias, (whole,), kind=kind))
    return split(builder, projected, 2, widths)


def _cached(
    scope: Scope, node: Node, before: Prologue, new: list[str], kind: int
) -> tuple[Operand, Operand]:
    """K and V with the cache before them; the cache holds both under a first axis of 2."""
    past, steps = optional(node, _PAST), split_heads(int(node.attrs["num_heads"]))
    if past is None and not used(scope, node, _PRESENT):
        return Operand(new[0], steps), Operand(new[1], steps)
    builder = before.builder
    both = [emit_steps(builder, name, steps) for name in new]
    if past is not None:
        names = (2, "batch", "kv_heads", "past_length", "head_dim")
        cache = before.read(past, names, kind=kind)
        parts = [builder.gather(cache, builder.constant(i, "int64"), 0) for i in range(2)]
        both = [builder.concat(pair, 2) for pair in zip(parts, both, strict=True)]
    if used(scope, node, _PRESENT):
        stacked = builder.concat([builder.unsqueeze(name, (0,)) for name in both], 0)
        before.makes(scope, node, _PRESENT, stacked)
    return Operand(both[0]), Operand(both[1])
