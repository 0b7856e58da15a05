"""One way to read the graph around a Softmax, its operands and masks in four dimensions."""

from dataclasses import dataclass, replace

from sparsify.constants import Dims, dims
from sparsify.layout import Squeeze, Unsqueeze
from sparsify.site import Mask
from sparsify.view import FLOATS, Node, Scope, Tensor, element_type, producer
from sparsify_plugins.matchers.operands import Source, climbed, source_of, unfolded
from sparsify_plugins.matchers.scores import Scores
from sparsify_plugins.matchers.values import Values
from sparsify_plugins.matchers.views import Folding, folding_of
from sparsify_plugins.matchers.walk import Stop

_HALF_LOWEST = -65504.0
NONE = float("-inf")


@dataclass(frozen=True)
class Reading:
    """One way to read the graph around a Softmax."""

    scope: Scope
    softmax: Node
    scores: Scores
    values: Values


@dataclass(frozen=True)
class Operands:
    """Q, K and V in four dimensions, and how the views of the scores fold into these."""

    query: Source
    key: Source
    value: Source
    folding: Folding
    group: int = 1
    widened: bool = False


def operands_of(reading: Reading) -> Operands | Stop:
    """Q, K and V of a reading, or why they cannot be told."""
    product, values = reading.scores.product, reading.values.product
    assert product is not None
    assert values is not None
    node = reading.scores.nodes[-1]
    if product.query.rank != product.key.rank:
        return Stop("rank_unsupported", "Q and K are of different ranks", node)
    query, key = (climbed(source_of(factor)) for factor in (product.query, product.key))
    value, widened = _narrowed(source_of(values.value), float_type(query.tensor))
    types = {float_type(source.tensor) for source in (query, key, value)}
    if len(types) != 1 or not types <= set(FLOATS):
        return Stop("mixed_dtype", "Q, K and V are not of one float type", node)
    open_folds = [unfolded(source) for source in (query, key, value)]
    heads = {fold.sizes()[1] for fold in open_folds if fold is not None}
    known = heads.pop() if len(heads) == 1 and None not in open_folds else None
    folding = folding_of(_views(reading), _native(query), _native(key), known)
    if folding is None:
        return Stop("rank_unsupported", "scores of these ranks are not supported", node)
    q, k, v = (_folded(source, folding) for source in (query, key, value))
    if q is None or k is None or v is None:
        return Stop("rank_unsupported", "batch and heads cannot be told apart", node)
    group = 1
    if folding.grouped and len(_native(key)) == 5 and _native(key)[2] == 1:
        group = folding.inner or _native(query)[2] or 1
    return Operands(q, k, v, folding, group, widened)


def _narrowed(value: Source, element_type: int) -> tuple[Source, bool]:
    """V before it was cast from the half precision of Q to float32, and whether it was."""
    node = producer(value.tensor, "Cast")
    if node is None or float_type(value.tensor) != FLOATS[0] or element_type == FLOATS[0]:
        return value, False
    if float_type(node.inputs[0]) != element_type:
        return value, False
    return replace(value, tensor=node.inputs[0]), True


def _views(reading: Reading) -> list[Dims]:
    """The shapes that the scores and probabilities have, where the graph tells."""
    product = reading.scores.product
    assert product is not None
    found = [dims(tensor) for tensor in (*reading.scores.views, *reading.values.views)]
    known = [sizes for sizes in found if sizes is not None]
    return known or [(None,) * product.query.rank]


def _folded(source: Source, folding: Folding) -> Source | None:
    """A source with the steps to four dimensions; from before a Reshape that folded them."""
    sizes = _native(source)
    rank = len(sizes)
    if rank == 3 and not folding.flat and not source.steps:
        four = unfolded(source)
        if four is not None and four.sizes()[1] in (folding.heads, None):
            return four
    steps = folding.steps(rank, ones=rank == 5 and sizes[2] == 1)
    if steps and source.steps and steps == (Squeeze((2,)),) and source.steps == (Unsqueeze((2,)),):
        return replace(source, steps=())
    return None if steps is None else replace(source, steps=(*source.steps, *steps))


def _native(source: Source) -> Dims:
    """The sizes of a factor of the product, with the ones that it lacks."""
    sizes = list(source.sizes())
    for step in source.steps:
        for axis in getattr(step, "axes", ()):
            sizes.insert(axis, 1)
    return tuple(sizes)


def float_type(tensor: Tensor) -> int:
    """The element type of a tensor, or of what it is made from; float32 where none is known."""
    known = element_type(tensor)
    node = producer(tensor)
    while known is None and node is not None and node.inputs:
        known = element_type(node.inputs[0])
        node = producer(node.inputs[0])
    return known or FLOATS[0]


# Masks ----------------------------------------------------------------------------------------


def masks_of(reading: Reading, folding: Folding) -> tuple[Mask, ...] | Stop:
    """The masks for scores of four dimensions, in the order in which the graph applies them."""
    found = []
    scores = reading.scores
    for mask, view in reversed(scores.masks):
        rank = _view_rank(scores, view)
        lifted = folding.mask(_settled(reading, mask), rank)
        if lifted is None:
            return Stop("rank_unsupported", f"a mask on scores of rank {rank} cannot be folded")
        found.append(lifted)
    return tuple(found)


def _settled(reading: Reading, mask: Mask) -> Mask:
    """A mask whose fill means what it comes to: probabilities set to 0 later, half precision."""
    if (mask.operand.tensor, mask.kind == "drop") in reading.values.zeroed_names:
        return replace(mask, fill=float("-inf"))
    product = reading.scores.product
    assert product is not None
    if mask.selects and float_type(product.query.tensor) != FLOATS[0]:
        # scores in float32 know lower numbers than the operator's mask in half precision
        return replace(mask, fill=max(mask.fill, _HALF_LOWEST) if mask.fill > NONE else mask.fill)
    return mask


def _view_rank(scores: Scores, view: int) -> int:
    assert scores.product is not None
    sizes = dims(scores.views[view])
    return scores.product.query.rank if sizes is None else len(sizes)
