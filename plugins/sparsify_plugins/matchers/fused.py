"""What matchers of fused attention operators share: optional inputs, caches, masks, prologues."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsify.builder import Builder
from sparsify.constants import Dims, dims
from sparsify.layout import Merge, Split, Step, Transpose
from sparsify.site import Given, Mask, Operand, Refusal
from sparsify.view import FLOATS, Node, Scope, Tensor, consumers, element_type, label, producer

BOOL, FLOAT, INT32, INT64 = 9, 1, 6, 7

Obstacle = tuple[str, str]
"""A refusal's code and its sentence."""

JOINED: tuple[Step, ...] = (Transpose((0, 2, 1, 3)), Merge(2, 4))
"""From `[batch, heads, length, dim]` to `[batch, length, heads * dim]`."""

_CLIMB = 64
"""More nodes than lie between an attention and the weight that tells its type and width."""

_KEEPS_WIDTH = {
    "Add": (1, 0),
    "BiasAdd": (1, 0),
    "BiasGelu": (1, 0),
    "Cast": (0,),
    "EmbedLayerNormalization": (2, 3),
    "FastGelu": (0,),
    "Gelu": (0,),
    "Identity": (0,),
    "LayerNormalization": (1, 0),
    "MatMul": (1,),
    "Mul": (1, 0),
    "Relu": (0,),
    "RotaryEmbedding": (0,),
    "SimplifiedLayerNormalization": (1, 0),
    "SkipLayerNormalization": (2, 0),
    "SkipSimplifiedLayerNormalization": (2, 0),
}
"""Operators whose first result is as wide as one of these inputs, ONNX Runtime's own included."""


@dataclass(frozen=True)
class Prologue:
    """Collects what a site writes before the operator, what that reads, and what else it makes."""

    builder: Builder
    given: dict[str, Given] = field(default_factory=dict)
    also: list[tuple[str, str]] = field(default_factory=list)

    def read(
        self,
        tensor: Tensor,
        names: Sequence[int | str],
        values: int | str = "normal",
        kind: int | None = None,
    ) -> str:
        """Declare a tensor of the graph, whose open sizes have `names`; its name."""
        known = dims(tensor)
        sizes = tuple(names)
        if known is not None and len(known) == len(sizes):
            sizes = tuple(n if k is None else k for k, n in zip(known, sizes, strict=True))
        kind = kind or element_type(tensor) or FLOAT
        self.given[tensor.name] = Given(tensor.name, kind, sizes, values)
        return str(tensor.name)

    def makes(self, scope: Scope, node: Node, index: int, made: str) -> None:
        """Say that `made` is output `index` of the replaced node, if that is used."""
        if used(scope, node, index):
            self.also.append((made, node.outputs[index].name))


def prologue(scope: Scope, node: Node) -> Prologue:
    """An empty prologue for one node; the names in it open with the node's first output."""
    return Prologue(scope.builder(node.outputs[0].name))


def refusal(scope: Scope, node: Node, obstacle: Obstacle) -> Refusal:
    """The refusal of one fused node."""
    return Refusal(obstacle[0], obstacle[1], scope.name, (label(node),))


def optional(node: Node, index: int) -> Tensor | None:
    """An input of a node, None where it is left out."""
    present = index < len(node.inputs) and bool(node.inputs[index].name)
    return node.inputs[index] if present else None


def used(scope: Scope, node: Node, index: int) -> bool:
    """Whether anything reads an output of a node, or it leaves the graph."""
    tensor = node.outputs[index] if index < len(node.outputs) else None
    if tensor is None or not tensor.name:
        return False
    return bool(consumers(tensor)) or tensor.name in scope.outputs


def split_heads(heads: int) -> tuple[Step, ...]:
    """From `[batch, length, heads * dim]` to `[batch, heads, length, dim]`."""
    return Split(2, 3, outer=heads), Transpose((0, 2, 1, 3))


def width(tensor: Tensor | None, depth: int = _CLIMB) -> int | None:
    """The last size of a tensor; through operators that shape inference does not know."""
    known = dims(tensor) if tensor is not None else None
    if tensor is None or depth == 0 or (known and known[-1] is not None):
        return known[-1] if known else None
    node = producer(tensor)
    if node is None or tensor is not node.outputs[0]:
        return None
    sources = (optional(node, index) for index in _KEEPS_WIDTH.get(node.op, ()))
    found = (width(source, depth - 1) for source in sources)
    return next((size for size in found if size not in (None, 1)), None)


def float_type(node: Node) -> int | None:
    """The float type that a fused node computes in: that of its inputs, or of what leads there."""
    todo, seen = list(node.inputs), set[int]()
    for _ in range(_CLIMB):
        if not todo:
            return None
        tensor = todo.pop(0)
        kind = element_type(tensor)
        if kind in FLOATS:
            return kind
        above = producer(tensor)
        if kind is None and above is not None and id(above) not in seen:
            seen.add(id(above))
            todo.extend(above.inputs)
    return None


def cache_names(past: int | None, new: int | None) -> tuple[int | str, int | str]:
    """How a trial names the lengths of a cache and of the keys after it; together "k_length"."""
    if past is not None:
        return past, f"k_length-{past}" if new is None else new
    return ("past_length", "k_length-past_length") if new is None else (f"k_length-{new}", new)


def total(past: int | None, new: int | None) -> int | None:
    """The sum of two lengths, None where one is open."""
    return None if past is None or new is None else past + new


def score_mask(tensor: Tensor) -> Mask:
    """A mask as the operators take it: bool keeps, any other type is added to the scores."""
    kind = element_type(tensor) or BOOL
    sizes = dims(tensor) or (None,) * 4
    return Mask("keep" if kind == BOOL else "add", Operand(tensor.name), kind, sizes=sizes)


def score_names(sizes: Dims, last: str = "k_length") -> tuple[int | str, ...]:
    """How a trial names the sizes of a tensor that is broadcast to the scores from the right."""
    names: tuple[int | str, ...] = ("batch", 1, "q_length", last)
    return names[4 - len(sizes) :]


# What is written before the operator ------------------------------------------------------------


def split(builder: Builder, name: str, axis: int, sizes: Sequence[int]) -> list[str]:
    """Parts of a tensor along one axis."""
    count = len(sizes)
    if builder.opset < 13:
        return builder.node("Split", [name], {"axis": axis, "split": list(sizes)}, outputs=count)
    return builder.node("Split", [name, builder.ints(*sizes)], {"axis": axis}, outputs=count)


def extended(builder: Builder, name: str, rank: int, missing: str, fill: str) -> str:
    """A tensor with `fill` appended along its last axis, as often as `missing` (1-D) says."""
    shape = [builder.dims(name, *range(rank - 1))] if rank > 1 else []
    rest = builder.op("Expand", fill, builder.concat([*shape, missing], 0))
    return builder.concat([name, rest], rank - 1)


def padding_bias(before: Prologue, mask: str, kind: int, fill: float) -> str:
    """0 where an integer mask is positive, else `fill`: ONNX Runtime adds it to the scores."""
    builder = before.builder
    kept = builder.op("Greater", builder.cast(mask, FLOAT), builder.scalar(0.0))
    bias = builder.op("Where", kept, builder.scalar(0.0), builder.scalar(fill))
    return bias if kind == FLOAT else builder.cast(bias, kind)


def lengths_of_keys(before: Prologue, lengths: str, count: str) -> str:
    """Lengths as the operator takes them, one for each batch (`count`, 1-D).

    ONNX Runtime adds one number to all masked scores: where nothing is left, nothing is masked.
    """
    builder = before.builder
    wide = builder.reshape(builder.cast(lengths, INT64), count)
    none = builder.op("Less", wide, builder.constant(1, "int64"))
    every = builder.constant((1 << 63) - 1, "int64")
    return builder.op("Where", none, every, wide)
