"""From the Softmax up to the product of queries and keys: scale, softcap and masks on the way.

Each step is one row of a table: an operator, and the function that says what it does to the scores.
Read upwards, the scores are `factor * tensor` plus the masks collected so far.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sparsify.constants import dims, scalar
from sparsify.site import VANISHES, Mask, Operand
from sparsify.view import Node, Tensor, element_type, is_weight, producer
from sparsify_plugins.matchers.walk import Stop, fill_number, passes_through, scaled

_LONGEST = 24
"""More steps than any attention takes between its product and its Softmax."""

_BOOL = 9


@dataclass(frozen=True)
class Scores:
    """The scores at some point of the walk upwards; at its end `nodes[-1]` is the product."""

    tensor: Tensor
    factor: float = 1.0
    softcap: float = 0.0
    masks: tuple[Mask, ...] = ()
    nodes: tuple[Node, ...] = ()

    def above(self, node: Node, tensor: Tensor, factor: float = 1.0) -> "Scores":
        """The scores one step up, where `node` multiplied `tensor` by `factor`."""
        return replace(self, tensor=tensor, factor=self.factor * factor, nodes=(*self.nodes, node))


def trace_scores(scores: Scores) -> Scores | Stop:
    """Follow the scores up to the product of two computed tensors."""
    node = producer(scores.tensor)
    if node is None or len(scores.nodes) > _LONGEST:
        return Stop(
            "not_attention", "the Softmax is not fed by a product of queries and keys", node
        )
    if node.op == "MatMul":
        if any(is_weight(tensor) for tensor in node.inputs):
            return Stop("not_attention", "the product before the Softmax is with a weight", node)
        return scores.above(node, node.outputs[0])
    stop = Stop(
        "scores_unknown", f"the scores pass through {node.op} in a way that is not known", node
    )
    first: Stop | None = None
    for above in _STEPS.get(node.op, _unknown)(scores, node):
        found = trace_scores(above)
        if isinstance(found, Scores):
            return found
        first = first or found
    return first or stop


def _unknown(scores: Scores, node: Node) -> Iterator[Scores]:
    yield from ()


def _through(scores: Scores, node: Node) -> Iterator[Scores]:
    if passes_through(node):
        yield scores.above(node, node.inputs[0])


def _scale(scores: Scores, node: Node) -> Iterator[Scores]:
    found = scaled(node)
    if found is not None:
        yield scores.above(node, *found)


def _tanh(scores: Scores, node: Node) -> Iterator[Scores]:
    # cap * tanh(x / cap): what was collected so far is the cap, and what comes is divided by it
    if not scores.softcap and scores.factor > 0:
        yield replace(scores.above(node, node.inputs[0]), softcap=scores.factor)


def _add(scores: Scores, node: Node) -> Iterator[Scores]:
    if scores.softcap:  # a mask inside the softcap is not the normal form
        return
    for one, other in ((0, 1), (1, 0)):
        above = scores.above(node, node.inputs[one])
        term = _unexpanded(node.inputs[other])
        if scalar(term) is None:  # one number for all scores does not change a softmax
            mask = Mask("add", Operand(term.name), _float_type(term), scores.factor)
            above = replace(above, masks=(*scores.masks, _sized(mask, term)))
        yield above


def _where(scores: Scores, node: Node) -> Iterator[Scores]:
    if scores.softcap:
        return
    condition = _unexpanded(node.inputs[0])
    for kind, kept, other in (("keep", 1, 2), ("drop", 2, 1)):
        fill = fill_number(node.inputs[other])
        if fill is not None and fill * scores.factor <= VANISHES:
            mask = Mask(kind, Operand(condition.name), _BOOL, fill=fill * scores.factor)
            above = scores.above(node, node.inputs[kept])
            yield replace(above, masks=(*scores.masks, _sized(mask, condition)))


def _unexpanded(mask: Tensor) -> Tensor:
    """A mask before it was stretched to the scores: broadcasting does the same without a copy."""
    node = producer(mask, "Expand")
    return mask if node is None or dims(node.inputs[0]) is None else node.inputs[0]


def _sized(mask: Mask, tensor: Tensor) -> Mask:
    sizes = dims(tensor)
    return replace(mask, sizes=(None,) * 4 if sizes is None else sizes)


def _float_type(tensor: Tensor) -> int:
    return element_type(tensor) or 1


_STEPS: dict[str, Callable[[Scores, Node], Iterator[Scores]]] = {
    "Add": _add,
    "Cast": _through,
    "Div": _scale,
    "Dropout": _through,
    "Identity": _through,
    "Mul": _scale,
    "Tanh": _tanh,
    "Where": _where,
}
