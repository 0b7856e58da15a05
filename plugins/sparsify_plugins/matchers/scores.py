"""From the Softmax up to the product of queries and keys: scale, softcap and masks on the way.

Each step is one row of a table: an operator, and the function that says what it does to the scores.
Read upwards, the scores are `factor * tensor` plus the masks collected so far.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sparsify.constants import axis_attribute, dims, scalar
from sparsify.layout import Squeeze, Transpose, Unsqueeze
from sparsify.site import VANISHES, Mask, Operand
from sparsify.view import Node, Tensor, element_type, is_weight, producer
from sparsify_plugins.matchers.products import PRODUCTS, ScoreProduct, score_product
from sparsify_plugins.matchers.walk import (
    Stop,
    dequantized,
    fill_number,
    last_axis,
    passes_through,
    reshapes,
    scaled,
    swaps_last,
)

_LONGEST = 40
"""More steps than any attention takes between its product and its Softmax."""

_BOOL = 9

_BOUND = 1e4
"""A clamp of scores from here on bounds nothing that a model makes."""


@dataclass(frozen=True)
class Scores:
    """The scores at some point of the walk upwards; at its end `product` is what makes them.

    `views` are the tensors at which the scores have another shape than below, from the Softmax up;
    `masks` and the view at which each applies go together. `turned` says that the tensor is
    `[.., keys, queries]`. With `sinks_wanted` the last column is not a key.
    """

    tensor: Tensor
    views: tuple[Tensor, ...]
    factor: float = 1.0
    softcap: float = 0.0
    masks: tuple[tuple[Mask, int], ...] = ()
    nodes: tuple[Node, ...] = ()
    turned: bool = False
    sinks_wanted: bool = False
    sinks: Operand | None = None
    unquantized: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stretched: bool = True
    product: ScoreProduct | None = None

    def above(self, node: Node, tensor: Tensor, factor: float = 1.0) -> "Scores":
        """The scores one step up, where `node` multiplied `tensor` by `factor`."""
        return replace(self, tensor=tensor, factor=self.factor * factor, nodes=(*self.nodes, node))

    def masked(self, mask: Mask) -> "Scores":
        """The scores without a mask that applies here."""
        if self.turned and len(mask.sizes) > 1:
            rank = len(mask.sizes)
            swap = (*range(rank - 2), rank - 1, rank - 2)
            sizes = tuple(mask.sizes[axis] for axis in swap)
            mask = replace(mask, operand=mask.operand.then(Transpose(swap)), sizes=sizes)
        return replace(self, masks=(*self.masks, (mask, len(self.views) - 1)))

    def noted(self, note: str) -> "Scores":
        """The scores with a remark for the report."""
        return replace(self, notes=(*self.notes, note))

    @property
    def times(self) -> bool:
        """Whether a tensor multiplied the scores on the way; then nothing may be added above."""
        return any(mask.kind in ("times", "over") for mask, _ in self.masks)


def trace_scores(scores: Scores) -> Iterator[Scores | Stop]:
    """Follow the scores up to each product of two computed tensors; reasons where that fails."""
    node = producer(scores.tensor)
    if node is None or len(scores.nodes) > _LONGEST:
        reason = "the Softmax is not fed by a product of queries and keys"
        yield Stop("not_attention", reason, node)
    elif node.op in PRODUCTS:
        yield _product(scores, node)
    else:
        steps = list(_STEPS.get(node.op, _unknown)(scores, node))
        for above in steps:
            yield from trace_scores(above)
        if not steps:
            reason = f"the scores pass through {node.op} in a way that is not known"
            yield Stop("scores_unknown", reason, node)


def _product(scores: Scores, node: Node) -> Scores | Stop:
    if any(is_weight(tensor) for tensor in node.inputs):
        return Stop("not_attention", "the product before the Softmax is with a weight", node)
    product = score_product(node)
    if product is None:
        return Stop("scores_unknown", f"this {node.op} is no product of queries and keys", node)
    if scores.turned:
        product = ScoreProduct(product.key, product.query, product.alpha)
    if scores.sinks_wanted:
        return Stop("scores_unknown", "a column is cut from the probabilities, not added", node)
    above = scores.above(node, node.outputs[0], product.alpha)
    return replace(above, product=product)


def _unknown(scores: Scores, node: Node) -> Iterator[Scores]:
    yield from ()


def _through(scores: Scores, node: Node) -> Iterator[Scores]:
    if passes_through(node):
        yield scores.above(node, node.inputs[0])


def _dequantize(scores: Scores, node: Node) -> Iterator[Scores]:
    quantize = dequantized(node)
    if quantize is not None:
        above = scores.above(node, quantize.outputs[0]).above(quantize, quantize.inputs[0])
        yield replace(above, unquantized=(*scores.unquantized, node.outputs[0].name))


def _reshape(scores: Scores, node: Node) -> Iterator[Scores]:
    if reshapes(node):
        above = scores.above(node, node.inputs[0])
        yield replace(above, views=(*scores.views, node.inputs[0]))


def _transpose(scores: Scores, node: Node) -> Iterator[Scores]:
    if swaps_last(node):
        yield replace(scores.above(node, node.inputs[0]), turned=not scores.turned)


def _mul(scores: Scores, node: Node) -> Iterator[Scores]:
    found = scaled(node)
    if found is not None:
        yield scores.above(node, *found)
        return
    for one, other in ((0, 1), (1, 0)):
        yield from _multiplied(scores.above(node, node.inputs[one]), node.inputs[other])


def _multiplied(above: Scores, tensor: Tensor) -> Iterator[Scores]:
    """Scores times a tensor: a factor for each row, or a 0/1 mask whose zeros are filled below."""
    if _per_row(above, tensor):
        kind = _float_type(tensor)
        yield above.masked(Mask("times", Operand(tensor.name), kind, sizes=_sizes(tensor)))
        return
    filled = _filled_below(above, tensor)
    if filled is not None:
        yield filled


def _filled_below(above: Scores, tensor: Tensor) -> Scores | None:
    """`scores * m + (1 - m) * fill`, the last added below: a mask that keeps where m is 1."""
    if not above.masks or above.masks[-1][0].kind != "add":
        return None
    mask, view = above.masks[-1]
    term = next((t for t in above.nodes[-2].inputs if t.name == mask.operand.tensor), None)
    line = None if term is None else _line(term, tensor)
    if line is None or abs(line[0] + line[1]) > 1e-6 * abs(line[1]):
        return None
    fill = line[1] * mask.factor
    if fill > VANISHES:
        return None
    kind = element_type(tensor) or 1
    keep = Mask("keep", Operand(tensor.name), kind, fill=fill, sizes=_sizes(tensor))
    found = replace(above, masks=(*above.masks[:-1], (keep, view)))
    if _is_flag(tensor):
        return found
    return found.noted(f"mask: {tensor.name} is taken as 0 or 1")


def _is_flag(tensor: Tensor) -> bool:
    """Whether a tensor is a bool, or one made a number."""
    node = producer(tensor, "Cast")
    return element_type(tensor) == _BOOL or (
        node is not None and element_type(node.inputs[0]) == _BOOL
    )


def _line(term: Tensor, variable: Tensor, depth: int = 8) -> tuple[float, float] | None:
    """`term` as `a * variable + c`, with numbers that the graph fixes."""
    if term is variable or term.name == variable.name:
        return 1.0, 0.0
    node = producer(term)
    if node is None or depth == 0:
        return None
    if passes_through(node):
        return _line(node.inputs[0], variable, depth - 1)
    if node.op not in ("Mul", "Div", "Sub", "Add"):
        return None
    for one, other in ((0, 1), (1, 0)):
        number, line = scalar(node.inputs[other]), _line(node.inputs[one], variable, depth - 1)
        if number is None or line is None:
            continue
        a, c = line
        if node.op == "Mul":
            return a * number, c * number
        if node.op == "Add":
            return a, c + number
        if node.op == "Div" and one == 0 and number:
            return a / number, c / number
        if node.op == "Sub":
            return (a, c - number) if one == 0 else (-a, number - c)
    return None


def _div(scores: Scores, node: Node) -> Iterator[Scores]:
    found, tensor = scaled(node), node.inputs[1]
    if found is not None:
        yield scores.above(node, *found)
    elif _per_row(scores, tensor):
        above = scores.above(node, node.inputs[0])
        yield above.masked(
            Mask("over", Operand(tensor.name), _float_type(tensor), sizes=_sizes(tensor))
        )


def _per_row(scores: Scores, tensor: Tensor) -> bool:
    """Whether a tensor has one number for all keys of a row."""
    sizes = dims(tensor)
    return sizes is not None and (not sizes or sizes[-1] == 1) and not scores.turned


def _tanh(scores: Scores, node: Node) -> Iterator[Scores]:
    # cap * tanh(x / cap): what was collected so far is the cap, and what comes is divided by it
    if not scores.softcap and scores.factor > 0 and not scores.times:
        yield replace(scores.above(node, node.inputs[0]), softcap=scores.factor)


def _clamp(scores: Scores, node: Node) -> Iterator[Scores]:
    """Max, Min or Clip with bounds so far out that only masked scores meet them."""
    if node.op == "Clip":
        tensors = node.inputs[1:]
        bounds = [scalar(tensor) for tensor in tensors if tensor.name]
        bounds += [node.attrs[name] for name in ("min", "max") if name in node.attrs]
        data = [node.inputs[0]]
    else:
        pairs = [(tensor, fill_number(tensor)) for tensor in node.inputs]
        bounds = [number for _, number in pairs if number is not None]
        data = [tensor for tensor, number in pairs if number is None]
    if len(data) != 1 or not bounds or None in bounds:
        return
    if all(abs(bound * scores.factor) >= _BOUND for bound in bounds if bound is not None):
        yield scores.above(node, data[0]).noted("clamp: scores are not clamped any more")


def _add(scores: Scores, node: Node) -> Iterator[Scores]:
    if scores.softcap or scores.times:  # a mask inside a softcap or a factor is no normal form
        return
    for one, other in ((0, 1), (1, 0)):
        yield _plus(scores.above(node, node.inputs[one]), node.inputs[other], scores.factor)


def _sub(scores: Scores, node: Node) -> Iterator[Scores]:
    largest = producer(node.inputs[1], "ReduceMax")
    if largest is not None and largest.inputs[0] is node.inputs[0]:
        # the same number taken from a whole row does not change a softmax
        yield scores.above(largest, node.inputs[0]).above(node, node.inputs[0])
    elif not scores.softcap and not scores.times:
        yield _plus(scores.above(node, node.inputs[0]), node.inputs[1], -scores.factor)


def _plus(above: Scores, term: Tensor, factor: float) -> Scores:
    term = _unexpanded(above, term)
    if scalar(term) is not None:  # one number for all scores does not change a softmax
        return above
    sizes = _sizes(term)
    operand = _squeezed(term) if len(sizes) > 4 else Operand(term.name)
    if not sizes:
        operand, sizes = operand.then(Unsqueeze((0,))), (1,)
    return above.masked(Mask("add", operand, _float_type(term), factor, sizes=sizes))


def _squeezed(mask: Tensor) -> Operand:
    """A mask of many dimensions as the tensor that has only those that were not inserted.

    Windows are counted by the shape of that tensor; with it the proof draws both alike.
    """
    axes = None
    node = producer(mask, "Unsqueeze")
    if node is not None:
        axes = axis_attribute(node, "axes", 1)
    if node is None or axes is None or min(axes) < 0:
        return Operand(mask.name)
    return _squeezed(node.inputs[0]).then(Unsqueeze(tuple(axes)))


def _where(scores: Scores, node: Node) -> Iterator[Scores]:
    if scores.softcap or scores.times:
        return
    condition = _unexpanded(scores, node.inputs[0])
    for kind, kept, other in (("keep", 1, 2), ("drop", 2, 1)):
        fill = fill_number(node.inputs[other])
        if fill is not None and fill * scores.factor <= VANISHES:
            mask = Mask(kind, Operand(condition.name), _BOOL, fill=fill * scores.factor)
            above = scores.above(node, node.inputs[kept])
            yield above.masked(replace(mask, sizes=_sizes(condition)))


def _concat(scores: Scores, node: Node) -> Iterator[Scores]:
    """Scores with one more column, which takes mass and is cut off after the Softmax."""
    plain = scores.sinks_wanted and scores.factor == 1 and not scores.masks
    if not plain or len(node.inputs) != 2 or not last_axis(node, node.attrs.get("axis")):
        return
    sinks = _sinks(node.inputs[1])
    if sinks is not None:
        above = scores.above(node, node.inputs[0])
        yield replace(above, sinks=sinks, sinks_wanted=False)


def _sinks(tensor: Tensor) -> Operand | None:
    """The tensor that was stretched to a column: one logit for each head."""
    for _ in range(6):
        sizes, node = dims(tensor), producer(tensor)
        if sizes is not None and len(sizes) == 1:
            return Operand(tensor.name)
        if sizes is not None and len(sizes) == 4 and (sizes[0], *sizes[2:]) == (1, 1, 1):
            return Operand(tensor.name, (Squeeze((0, 2, 3)),))
        if node is None or node.op not in ("Expand", "Reshape", "Unsqueeze", "Identity"):
            return None
        tensor = node.inputs[0]
    return None


def _unexpanded(scores: Scores, mask: Tensor) -> Tensor:
    """A mask before it was stretched to the scores: broadcasting does the same without a copy."""
    node = producer(mask, "Expand") if scores.stretched else None
    return mask if node is None or dims(node.inputs[0]) is None else node.inputs[0]


def _sizes(tensor: Tensor) -> tuple[int | None, ...]:
    sizes = dims(tensor)
    return (None,) * 4 if sizes is None else sizes


def _float_type(tensor: Tensor) -> int:
    return element_type(tensor) or 1


_STEPS: dict[str, Callable[[Scores, Node], Iterator[Scores]]] = {
    "Add": _add,
    "Cast": _through,
    "Clip": _clamp,
    "Concat": _concat,
    "DequantizeLinear": _dequantize,
    "Div": _div,
    "Dropout": _through,
    "Identity": _through,
    "Max": _clamp,
    "Min": _clamp,
    "Mul": _mul,
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "Sub": _sub,
    "Tanh": _tanh,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
    "Where": _where,
}
