"""ONNX Runtime's GroupQueryAttention: rotary embedding, a cache, windows and sinks in one node.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sparsify.constants import Dims, dims
from sparsify.layout import emit_steps
from sparsify.site import Mask, Operand, Refusal, Site
from sparsify.view import Node, Scope, element_type, label
from sparsify_plugins.matchers.fused import (
    INT32,
    INT64,
    JOINED,
    Obstacle,
    Prologue,
    extended,
    float_type,
    optional,
    prologue,
    refusal,
    score_names,
    split,
    split_heads,
    used,
    width,
)
from sparsify_plugins.matchers.ms_cache import Cache
from sparsify_plugins.matchers.ms_rotary import Rotary, rotary

_Q, _K, _V, _PAST_KEY, _PAST_VALUE, _LAST, _TOTAL, _COS, _SIN, _POSITIONS, _BIAS, _SINKS = range(12)
_PRESENT_KEY, _PRESENT_VALUE, _PRODUCT = range(1, 4)

_LEFT_ALONE = {
    12: "k_scale",
    13: "v_scale",
    14: "q_norm_weight",
    15: "k_norm_weight",
    16: "query_seqlens",
}
"""Inputs with a meaning of their own, which no site has."""


@dataclass(frozen=True)
class GroupQueryMatcher:
    """Takes every GroupQueryAttention on floats with a whole cache."""

    def match(self, scope: Scope) -> Iterator[Site | Refusal]:
        """One site or one refusal for each node."""
        for node in scope.nodes():
            if node.op == "GroupQueryAttention" and node.domain == "com.microsoft":
                obstacle = _obstacle(scope, node)
                if obstacle is None:
                    yield _Reader(scope, node, prologue(scope, node)).site()
                else:
                    yield refusal(scope, node, obstacle)


MATCHER = GroupQueryMatcher()


def _obstacle(scope: Scope, node: Node) -> Obstacle | None:
    if used(scope, node, _PRODUCT):
        return "probabilities_shared", f"its output {node.outputs[_PRODUCT].name} is used"
    for index, name in _LEFT_ALONE.items():
        if optional(node, index) is not None:
            return "fused_unsupported", f"its input {name} is not supported"
    if node.attrs.get("sliding_window_cache", 0):
        return "shared_buffer_cache", "its cache holds a sliding window only"
    if float_type(node) is None:
        return "mixed_dtype", "its float type is not known"
    if _head_dim(node) is None:
        return "scale_unknown", "head_dim, and with it the default scale, is not known"
    if node.attrs.get("do_rotary", 0) and width(optional(node, _COS)) is None:
        return "fused_unsupported", "how many components it rotates is not known"
    bias = optional(node, _BIAS)
    if bias is not None and len(dims(bias) or ()) != 4:
        return "mask_unsupported", "its attention_bias is not known to have 4 dimensions"
    return None


def _head_dim(node: Node) -> int | None:
    past = dims(node.inputs[_PAST_KEY]) if optional(node, _PAST_KEY) is not None else None
    if past is not None and past[-1] is not None:
        return past[-1]
    heads, kv_heads = int(node.attrs["num_heads"]), int(node.attrs["kv_num_heads"])
    hidden = width(node.inputs[_Q])
    parts = heads if optional(node, _K) is not None else heads + 2 * kv_heads
    return None if hidden is None else hidden // parts


@dataclass(frozen=True)
class _Reader:
    """Reads one node into a site."""

    scope: Scope
    node: Node
    before: Prologue

    @property
    def heads(self) -> tuple[int, int]:
        """Heads of the queries, and of keys and values."""
        return int(self.node.attrs["num_heads"]), int(self.node.attrs["kv_num_heads"])

    @property
    def kind(self) -> int:
        return float_type(self.node) or 1

    @property
    def dim(self) -> int:
        return _head_dim(self.node) or 1

    def site(self) -> Site:
        node, before = self.node, self.before
        (heads, kv_heads), outer = self.heads, self._outer()
        causal = bool(node.attrs.get("causal", 1))
        query, new_key, new_value = self._parts()
        held, ends = self._lengths()
        if node.attrs.get("do_rotary", 0):
            turn = self._rotary(held)
            query, new_key = (turn.rotated(name, self.dim) for name in (query, new_key))
        key, value = self._present(new_key, new_value, held)
        self._read_the_rest()
        window = int(node.attrs.get("local_window_size", -1))
        return Site(
            name=label(node),
            scope=self.scope.name,
            matcher="ms_group_query",
            query=Operand(query),
            key=Operand(key),
            value=Operand(value),
            output=node.outputs[0].name,
            scale=float(node.attrs.get("scale", 0.0)) or float(self.dim) ** -0.5,
            element_type=self.kind,
            nodes=(label(node),),
            masks=self._masks(key),
            causal=causal,
            left_window=window - 1 if window > 0 else -1,
            softcap=float(node.attrs.get("softcap", 0.0)),
            group=heads // kv_heads,
            q_heads=heads,
            kv_heads=kv_heads,
            q_length=outer[1],
            head_dim=self.dim,
            value_dim=self.dim,
            batch=outer[0],
            result=JOINED,
            query_offset=held,
            key_lengths=ends,
            sinks=self._sinks(),
            before=tuple(before.builder.nodes),
            given=tuple(before.given.values()),
            also=tuple(before.also),
        )

    def _outer(self) -> Dims:
        return (dims(self.node.inputs[_Q]) or (None, None))[:2]

    def _parts(self) -> list[str]:
        """Q and the new keys and values, divided into heads."""
        builder, (heads, kv_heads) = self.before.builder, self.heads
        widths = [heads * self.dim, kv_heads * self.dim, kv_heads * self.dim]
        if optional(self.node, _K) is None:
            whole = self._read(_Q, ("batch", "q_length", sum(widths)))
            parts = split(builder, whole, 2, widths)
        else:
            parts = [self._read(i, ("batch", "q_length", w)) for i, w in enumerate(widths)]
        counts = (heads, kv_heads, kv_heads)
        pairs = zip(parts, counts, strict=True)
        return [emit_steps(builder, name, split_heads(count)) for name, count in pairs]

    def _read(self, index: int, names: tuple[int | str, ...]) -> str:
        return self.before.read(self.node.inputs[index], names, kind=self.kind)

    def _lengths(self) -> tuple[str, str]:
        """For each batch: keys held before this step, and keys after it."""
        builder, last = self.before.builder, self.node.inputs[_LAST]
        name = self.before.read(last, ("batch",), "last", INT32)
        one, zero = (builder.constant(value, "int64") for value in (1, 0))
        wide = builder.reshape(builder.cast(name, INT64), (-1,))
        ends = builder.op("Add", wide, one)
        held = builder.op("Sub", ends, builder.dims(self.node.inputs[_Q].name, 1))
        # a prompt holds nothing before it, though it be shorter than its padding
        held = builder.op("Where", builder.op("Less", held, zero), zero, held)
        return held, ends

    def _rotary(self, held: str) -> Rotary:
        node, builder = self.node, self.before.builder
        angles = width(optional(node, _COS)) or 1
        tables = self._read(_COS, ("k_length", angles)), self._read(_SIN, ("k_length", angles))
        interleaved = bool(node.attrs.get("rotary_interleaved", 0))
        return rotary(builder, tables, self._positions(held), angles, interleaved)

    def _positions(self, held: str) -> str:
        """Positions `[batch, length]`; those that are given count from the first in a prompt."""
        builder = self.before.builder
        steps = builder.arange(builder.dim(self.node.inputs[_Q].name, 1))
        given = optional(self.node, _POSITIONS)
        if given is None:
            return builder.op("Add", builder.unsqueeze(held, (1,)), steps)
        return self.before.read(given, ("batch", "q_length"), "positions", INT64)

    def _total(self) -> str:
        """The largest number of keys of any batch, 0-D int64."""
        builder, total = self.before.builder, self.node.inputs[_TOTAL]
        rank = len(dims(total) or (1,))
        name = self.before.read(total, (1,) * rank, "k_length", element_type(total) or INT32)
        return builder.reshape(builder.cast(name, INT64), builder.constant([], "int64"))

    def _present(self, key: str, value: str, held: str) -> tuple[str, str]:
        """Keys and values of the cache and of this step, each where it belongs."""
        builder, present = self.before.builder, [key, value]
        if optional(self.node, _PAST_KEY) is not None:
            names = ("batch", "kv_heads", "past_length", "head_dim")
            past = [self._read(index, names) for index in (_PAST_KEY, _PAST_VALUE)]
            room, total = builder.dim(past[0], 2), self._total()
            result = builder.op("Where", builder.op("Less", room, total), total, room)
            cache = Cache(builder, held, room, builder.dim(key, 2), result)
            rows = cache.rows((builder.dims(key, 0), builder.dims(key, 1)))
            zero = self._number(0.0)
            pairs = zip(past, present, strict=True)
            present = [cache.written(old, new, rows, zero) for old, new in pairs]
        for index, name in enumerate(present, start=_PRESENT_KEY):
            self.before.makes(self.scope, self.node, index, name)
        return present[0], present[1]

    def _read_the_rest(self) -> None:
        """Declare inputs that the node has and does not use."""
        for index, names in ((_COS, ("k_length", "1")), (_SIN, ("k_length", "1"))):
            if optional(self.node, index) is not None:
                self._read(index, names)
        positions = optional(self.node, _POSITIONS)
        if positions is not None:
            self.before.read(positions, ("batch", "q_length"), "positions", INT64)
        self._total()

    def _number(self, value: float) -> str:
        builder = self.before.builder
        return builder.cast(builder.constant([value], "float32"), self.kind)

    def _masks(self, key: str) -> tuple[Mask, ...]:
        """The bias on the scores, as long as the cache: what lies behind its end is forbidden."""
        bias = optional(self.node, _BIAS)
        if bias is None:
            return ()
        sizes, builder = dims(bias) or (None,) * 4, self.before.builder
        name = self.before.read(bias, score_names(sizes), "bias", self.kind)
        missing = builder.op("Sub", builder.dims(key, 2), builder.dims(name, 3))
        name = extended(builder, name, 4, missing, self._number(0.0))
        return (Mask("add", Operand(name), self.kind, sizes=(*sizes[:3], None)),)

    def _sinks(self) -> Operand | None:
        if optional(self.node, _SINKS) is not None:
            return Operand(self._read(_SINKS, ("q_heads",)))
        return Operand(self._number(0.0)) if self.node.attrs.get("smooth_softmax", 0) else None
