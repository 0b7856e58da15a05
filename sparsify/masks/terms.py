"""Takes a mask of the graph apart: the terms that all must allow a key, down to comparisons.

A row of the table below says of one operator which smaller terms mean the same as the term it
makes. What no row takes apart is a leaf.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from onnx import NodeProto, TensorProto

from sparsify.layout import Step, Unsqueeze
from sparsify.masks.source import Source, cast, constant_of
from sparsify.site import VANISHES, Mask

_DEPTH = 40

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)

Sizes = Callable[[str], Sequence[int | None] | None]
"""The dimensions of a tensor by its name, as far as they are known."""

Types = Callable[[str], int | None]
"""The element type of a tensor by its name."""


@dataclass(frozen=True)
class Term:
    """One condition on scores: `tensor` with the meaning that `kind` has in `sparsify.site.Mask`.

    `fill` is what masked scores become, or have added. `lift` are the steps that align the tensor
    with the mask it is part of; without them it is aligned from the right.
    """

    kind: str
    tensor: str
    factor: float = 1.0
    fill: float = float("-inf")
    lift: tuple[Step, ...] = ()

    def of(self, tensor: str) -> "Term":
        """The same condition on another tensor."""
        return replace(self, tensor=tensor)

    def turned(self, tensor: str) -> "Term":
        """The opposite condition on another tensor."""
        return replace(self, tensor=tensor, kind="drop" if self.kind == "keep" else "keep")

    def plus(self, value: float) -> float:
        """What a value of the tensor adds to a score."""
        return value * self.factor if value else 0.0


@dataclass(frozen=True)
class Splitter:
    """Takes terms apart in one graph whose sizes and types are known as far as they are."""

    source: Source
    sizes: Sizes
    types: Types

    def terms(self, mask: Mask) -> list[Term]:
        """The terms that make a mask, a condition that stands there twice once."""
        found = self.split(Term(mask.kind, mask.operand.tensor, mask.factor, mask.fill))
        conditions = dict.fromkeys(term for term in found if term.kind != "add")
        return [*conditions, *(term for term in found if term.kind == "add")]

    def split(self, term: Term, depth: int = _DEPTH) -> list[Term]:
        """The leaves of a term."""
        node = self.source.maker(term.tensor)
        if node is None or depth == 0 or node.domain not in ("", "ai.onnx"):
            return [term]
        rows = _SUMS if term.kind == "add" else _CONDITIONS
        parts = rows[node.op_type](self, term, node) if node.op_type in rows else None
        if parts is None:
            return [term]
        return [leaf for part in parts for leaf in self.split(part, depth - 1)]

    def zero_or_one(self, name: str, inputs: bool = True, depth: int = 8) -> bool:
        """Whether a tensor is a mask in numbers: made from booleans, or an input of integers.

        An input counts if `inputs` and its name say so: integers may be ids as well.
        """
        kind, node = self.types(name), self.source.maker(name)
        if kind == TensorProto.BOOL:
            return True
        if node is None or depth == 0:
            whole = kind is not None and kind not in _FLOATS and name in self.source.inputs
            return inputs and whole and "mask" in name.lower()
        if node.op_type == "Sub" and self.source.number(node.input[0]) == 1:
            return self.zero_or_one(node.input[1], inputs, depth - 1)
        if node.op_type in _SAME_VALUES:
            return self.zero_or_one(node.input[0], inputs, depth - 1)
        return node.op_type == "Mul" and all(
            self.zero_or_one(source, inputs, depth - 1) for source in node.input
        )


Row = Callable[[Splitter, Term, NodeProto], list[Term] | None]

_SAME_VALUES = ("Cast", "Identity", "Expand", "Unsqueeze", "Reshape", "Slice", "Gather", "Squeeze")


def _both(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    return [term.of(name) for name in node.input] if term.kind == "keep" else None


def _either(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    return [term.of(name) for name in node.input] if term.kind == "drop" else None


def _not(splitter: Splitter, term: Term, node: NodeProto) -> list[Term]:
    return [term.turned(node.input[0])]


def _same(splitter: Splitter, term: Term, node: NodeProto) -> list[Term]:
    return [term.of(node.input[0])]


def _truth(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    """A Cast that does not change which elements are 0."""
    kinds = (splitter.types(node.input[0]), node.attribute[0].i)
    kept = TensorProto.BOOL in kinds or splitter.zero_or_one(node.input[0])
    return [term.of(node.input[0])] if kept else None


def _chosen(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    """Where with a side that forbids everything: the condition, and the other side."""
    condition, yes, no = node.input
    for fixed, other, kind in ((no, yes, "keep"), (yes, no, "drop")):
        number = splitter.source.number(fixed)
        if number is not None and bool(number) == (term.kind == "drop"):
            return [replace(term, kind=kind, tensor=condition), term.of(other)]
    return None


def _equal(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    for one, other in ((0, 1), (1, 0)):
        number = splitter.source.number(node.input[other])
        if number == 0:
            return [term.turned(node.input[one])]
        if number == 1 and splitter.zero_or_one(node.input[one], inputs=False):
            return [term.of(node.input[one])]
    return None


def _one_minus(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    one, mask = node.input
    if splitter.source.number(one) == 1 and splitter.zero_or_one(mask):
        return [term.turned(mask)]
    return None


def _product(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    if term.kind == "keep" and all(splitter.zero_or_one(source) for source in node.input):
        return [term.of(name) for name in node.input]
    return None


def _unsqueezed(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    """The terms of a tensor that gets dimensions of size 1, each aligned with it first."""
    inner, outer = splitter.sizes(node.input[0]), splitter.sizes(node.output[0])
    if inner is None or outer is None or term.lift:
        return None
    axes = _new_axes(splitter, node, len(outer))
    if axes is None or len(inner) + len(axes) != len(outer):
        return None
    if axes == tuple(range(len(axes))):
        return [term.of(node.input[0])]
    parts = []
    for part in splitter.split(replace(term, tensor=node.input[0], lift=())):
        sizes = splitter.sizes(part.tensor)
        if sizes is None:
            return None
        rank = len(sizes) + sum(len(s.axes) for s in part.lift if isinstance(s, Unsqueeze))
        missing = tuple(range(len(inner) - rank))
        steps: tuple[Step, ...] = (Unsqueeze(missing),) if missing else ()
        parts.append(replace(part, lift=(*part.lift, *steps, Unsqueeze(axes))))
    return parts


def _new_axes(splitter: Splitter, node: NodeProto, rank: int) -> tuple[int, ...] | None:
    axes: Sequence[int] | None = next((a.ints for a in node.attribute if a.name == "axes"), None)
    if axes is None:
        tensor = splitter.source.stored.get(node.input[1])
        maker = splitter.source.maker(node.input[1])
        if tensor is None and maker is not None and maker.op_type == "Constant":
            tensor = constant_of(maker)
        values = None if tensor is None else splitter.source.array(tensor)
        axes = None if values is None else [int(value) for value in values.reshape(-1)]
    return None if axes is None else tuple(sorted(axis % rank for axis in axes))


def _below(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    """An additive mask compared with a number between zero and what vanishes."""
    mask, bound = node.input
    number = splitter.source.number(bound)
    if term.kind != "drop" or number is None or not VANISHES < number < 0:
        return None
    parts = splitter.split(Term("add", mask))
    if any(part.kind == "add" for part in parts):
        return None
    return [replace(part, fill=term.fill, lift=(*part.lift, *term.lift)) for part in parts]


def _filled(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    """Where in a sum: one side vanishes, the other is zero or a sum of its own."""
    condition, yes, no = node.input
    for fixed, other, kind in ((no, yes, "keep"), (yes, no, "drop")):
        number = splitter.source.number(fixed)
        if number is not None and term.plus(number) <= VANISHES:
            choice = replace(term, kind=kind, tensor=condition, factor=1.0, fill=term.plus(number))
            zero = splitter.source.number(other) == 0
            return [choice] if zero else [choice, term.of(other)]
    return None


def _scaled(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    for one, other in ((0, 1), (1, 0)):
        number = splitter.source.number(node.input[other])
        if number is not None:
            return _weighed(splitter, term, node.input[one], term.factor * number)
    return None


def _weighed(splitter: Splitter, term: Term, name: str, factor: float) -> list[Term] | None:
    """`factor * tensor` in a sum; a mask in numbers is a condition."""
    if splitter.zero_or_one(name):
        if factor > VANISHES:
            return None
        return [Term("drop", name, fill=factor, lift=term.lift)]
    return [replace(term, tensor=name, factor=factor)]


def _difference(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    """`1 - mask` or `mask - 1`, times a number that makes it vanish."""
    for one, mask, sign in ((0, 1, 1), (1, 0, -1)):
        fill = sign * term.factor
        name = node.input[mask]
        fits = splitter.source.number(node.input[one]) == 1 and splitter.zero_or_one(name)
        if fits and fill <= VANISHES:
            return [Term("keep", name, fill=fill, lift=term.lift)]
    return None


def _sum(splitter: Splitter, term: Term, node: NodeProto) -> list[Term]:
    return [term.of(name) for name in node.input if splitter.source.number(name) != 0]


def _recast(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    source, target = splitter.types(node.input[0]), node.attribute[0].i
    if target not in _FLOATS:
        return None
    if source not in _FLOATS:
        return _weighed(splitter, term, node.input[0], term.factor)
    parts = splitter.split(term.of(node.input[0]))
    # an overflow makes the lowest number of a wider type -inf
    return [
        part if part.kind == "add" else replace(part, fill=cast(part.fill, target))
        for part in parts
    ]


def _lowest(splitter: Splitter, term: Term, node: NodeProto) -> list[Term] | None:
    """Max with a number so low that it only replaces what vanishes already."""
    for one, other in ((0, 1), (1, 0)):
        number = splitter.source.number(node.input[other])
        if number is not None and term.factor > 0 and term.plus(number) <= VANISHES:
            return [term.of(node.input[one])]
    return None


_CONDITIONS: dict[str, Row] = {
    "And": _both,
    "Cast": _truth,
    "Equal": _equal,
    "Expand": _same,
    "Identity": _same,
    "Less": _below,
    "LessOrEqual": _below,
    "Mul": _product,
    "Not": _not,
    "Or": _either,
    "Sub": _one_minus,
    "Unsqueeze": _unsqueezed,
    "Where": _chosen,
}

_SUMS: dict[str, Row] = {
    "Add": _sum,
    "Cast": _recast,
    "Expand": _same,
    "Identity": _same,
    "Max": _lowest,
    "Mul": _scaled,
    "Sub": _difference,
    "Unsqueeze": _unsqueezed,
    "Where": _filled,
}
