"""ONNX Runtime's MultiHeadAttention: Q, K and V projected already, with a bias and a cache.

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
    cache_names,
    float_type,
    optional,
    prologue,
    refusal,
    score_mask,
    split_heads,
    total,
    used,
    width,
)
from sparsify_plugins.matchers.ms_masks import mask_obstacle, padding

_Q, _K, _V, _BIAS, _PADDING, _SCORE_BIAS, _PAST_KEY, _PAST_VALUE, _PAST_LENGTH, _BEAMS = range(10)
_PRESENT_KEY, _PRESENT_VALUE, _PRODUCT = range(1, 4)


@dataclass(frozen=True)
class MultiHeadMatcher:
    """Takes every MultiHeadAttention whose cache is its own."""

    def match(self, scope: Scope) -> Iterator[Site | Refusal]:
        """One site or one refusal for each node."""
        for node in scope.nodes():
            if node.op == "MultiHeadAttention" and node.domain == "com.microsoft":
                obstacle = _obstacle(scope, node)
                if obstacle is None:
                    yield _Reader(scope, node, prologue(scope, node)).site()
                else:
                    yield refusal(scope, node, obstacle)


MATCHER = MultiHeadMatcher()


def _obstacle(scope: Scope, node: Node) -> Obstacle | None:
    if used(scope, node, _PRODUCT):
        return "probabilities_shared", f"its output {node.outputs[_PRODUCT].name} is used"
    for index, name in ((_PAST_LENGTH, "past_sequence_length"), (_BEAMS, "cache_indirection")):
        if optional(node, index) is not None:
            return "shared_buffer_cache", f"its {name} speaks of a cache that it shares"
    key, value = optional(node, _K), optional(node, _V)
    if key is None or value is None:
        return "fused_unsupported", "its Q, K and V are packed, which ONNX Runtime's CPU cannot run"
    if key is not None and _rank(node) not in (3, 4):
        return "rank_unsupported", "the rank of its key is not known to be 3 or 4"
    if float_type(node) is None:
        return "mixed_dtype", "its float type is not known"
    if _head_dim(node) is None:
        return "scale_unknown", "head_dim, and with it the default scale, is not known"
    if optional(node, _BIAS) is not None and width(value) is None and _rank(node) == 3:
        return "heads_unknown", "how its bias is divided is not known"
    if node.attrs.get("unidirectional", 0) and _unequal(node):
        return "causal_lengths", "it is causal between queries and keys of different numbers"
    return mask_obstacle(node, optional(node, _PADDING))


def _unequal(node: Node) -> bool:
    """Whether there are other numbers of queries and new keys, as far as the graph tells.

    ONNX Runtime's CPU kernel lets the last query see every key then, which nothing specifies.
    """
    lengths = node.inputs[_Q].shape, node.inputs[_K].shape
    if not all(lengths):
        return False
    queries, keys = lengths[0][1], lengths[1][2 if len(lengths[1]) == 4 else 1]
    known = all(isinstance(size, int) or (size and "unk__" not in size) for size in (queries, keys))
    return known and queries != keys


def _rank(node: Node) -> int | None:
    """The rank of the key; with a cache, or as wide as the query, it is not yet divided."""
    known = dims(node.inputs[_K])
    if known is not None:
        return len(known)
    undivided = optional(node, _PAST_KEY) is not None or width(node.inputs[_K]) == width(
        node.inputs[_Q]
    )
    return 3 if undivided and width(node.inputs[_K]) is not None else None


def _head_dim(node: Node) -> int | None:
    hidden, heads = width(node.inputs[_Q]), int(node.attrs["num_heads"])
    return None if hidden is None else hidden // heads


@dataclass(frozen=True)
class _Reader:
    """Reads one node into a site."""

    scope: Scope
    node: Node
    before: Prologue

    @property
    def heads(self) -> int:
        return int(self.node.attrs["num_heads"])

    def sizes(self, index: int) -> Dims:
        """`[batch, heads, length, dim]` of an operand."""
        known = dims(self.node.inputs[index])
        if known is not None and len(known) == 4:
            return known
        batch, length = (known or (None, None))[:2]
        hidden = width(self.node.inputs[index])
        return batch, self.heads, length, None if hidden is None else hidden // self.heads

    def past_length(self) -> int | None:
        past = optional(self.node, _PAST_KEY)
        return 0 if past is None else (dims(past) or (None,) * 4)[2]

    def site(self) -> Site:
        node, before = self.node, self.before
        kind = float_type(node) or 1
        q, k, v = (self.sizes(index) for index in (_Q, _K, _V))
        query = self.operand(_Q)
        key, value = (self.cached(index) for index in (_K, _V))
        causal = bool(node.attrs.get("unidirectional", 0))
        count = before.builder.dims(node.inputs[_Q].name, 0)
        found = padding(node, before, optional(node, _PADDING), kind, count)
        bias = optional(node, _SCORE_BIAS)
        past = optional(node, _PAST_KEY)
        offset = before.builder.dims(past.name, 2) if past is not None and causal else ""
        return Site(
            name=label(node),
            scope=self.scope.name,
            matcher="ms_multi_head",
            query=query,
            key=key,
            value=value,
            output=node.outputs[0].name,
            scale=float(node.attrs.get("scale", 0.0)) or float(q[3] or 1) ** -0.5,
            element_type=kind,
            nodes=(label(node),),
            masks=(*found.masks, *(() if bias is None else (score_mask(bias),))),
            causal=causal,
            q_heads=self.heads,
            kv_heads=self.heads,
            q_length=q[2],
            k_length=total(self.past_length(), k[2]),
            head_dim=q[3],
            value_dim=v[3],
            batch=q[0],
            result=JOINED,
            query_offset=offset,
            key_lengths=found.key_lengths,
            before=tuple(before.builder.nodes),
            given=tuple(before.given.values()),
            also=tuple(before.also),
        )

    def operand(self, index: int) -> Operand:
        """One operand with its part of the bias, its heads still to be divided."""
        if self._divided(index):
            return Operand(self.read(index))
        return Operand(self.biased(index, self.read(index)), split_heads(self.heads))

    def _divided(self, index: int) -> bool:
        return index != _Q and _rank(self.node) == 4

    def read(self, index: int) -> str:
        dim = "value_dim" if index == _V else "head_dim"
        length: int | str = "q_length"
        if index != _Q and not self.node.attrs.get("unidirectional", 0):
            past = optional(self.node, _PAST_KEY)
            _, new = cache_names(self.past_length(), self.sizes(index)[2])
            length = "k_length" if past is None else new
        names: tuple[int | str, ...] = ("batch", length, f"q_heads*{dim}")
        if self._divided(index):
            names = ("batch", "kv_heads", length, dim)
        tensor = self.node.inputs[index]
        return self.before.read(tensor, names, kind=float_type(self.node))

    def biased(self, index: int, name: str) -> str:
        bias = optional(self.node, _BIAS)
        if bias is None or (index != _Q and _rank(self.node) == 4):
            return name
        builder = self.before.builder
        hidden = self.heads * (self.sizes(_Q)[3] or 1)
        all_of = self.before.read(bias, ("q_heads*head_dim*3",), kind=float_type(self.node))
        start, end = index * hidden, (index + 1) * hidden if index != _V else 1 << 31
        part = builder.slice(all_of, builder.ints(start), builder.ints(end), 0)
        return builder.op("Add", name, part)

    def cached(self, index: int) -> Operand:
        """K or V with the cache before it; the two together are the present output."""
        output = _PRESENT_KEY if index == _K else _PRESENT_VALUE
        past = optional(self.node, _PAST_KEY if index == _K else _PAST_VALUE)
        operand, builder = self.operand(index), self.before.builder
        if past is None and not used(self.scope, self.node, output):
            return operand
        present = emit_steps(builder, operand.tensor, operand.steps)
        if past is not None:
            name, _ = cache_names(self.past_length(), self.sizes(index)[2])
            if self.node.attrs.get("unidirectional", 0):  # as many new keys as queries
                name = "past_length"
            dim = "value_dim" if index == _V else "head_dim"
            sizes = ("batch", "kv_heads", name, dim)
            cache = self.before.read(past, sizes, kind=float_type(self.node))
            present = builder.concat([cache, present], 2)
        self.before.makes(self.scope, self.node, output, present)
        return Operand(present)
