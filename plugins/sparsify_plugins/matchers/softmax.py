"""Attention written out as product, Softmax, product, with all that exporters put between."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sparsify.constants import Dims, dims
from sparsify.layout import Squeeze, Step, Unsqueeze, is_one
from sparsify.site import Mask, Refusal, Site
from sparsify.view import FLOATS, Node, Scope, Tensor, consumers, element_type, label, producer
from sparsify_plugins.matchers.operands import (
    Source,
    climbed,
    source_of,
    unfolded,
    unrepeated,
)
from sparsify_plugins.matchers.scores import Scores, trace_scores
from sparsify_plugins.matchers.values import Values, trace_values
from sparsify_plugins.matchers.views import Folding, folding_of
from sparsify_plugins.matchers.walk import Stop, value_readers


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


@dataclass(frozen=True)
class SoftmaxMatcher:
    """Finds `softmax(Q K^T ...) V` around each Softmax."""

    def match(self, scope: Scope) -> Iterator[Site | Refusal]:
        """Sites, the likeliest first, or one refusal, for each Softmax."""
        for node in scope.nodes():
            if node.op == "Softmax":
                yield from _candidates(scope, node)


MATCHER = SoftmaxMatcher()

_HALF_LOWEST = -65504.0
_NONE = float("-inf")


def _candidates(scope: Scope, softmax: Node) -> Iterator[Site | Refusal]:
    sites: list[Site] = []
    stops: list[Stop] = []
    for reading in _readings(scope, softmax):
        found = reading if isinstance(reading, Stop) else _sites(reading)
        if isinstance(found, Stop):
            stops.append(found)
        else:
            sites.extend(site for site in found if site not in sites)
    yield from sites
    if not sites:
        yield _refusal(scope, softmax, stops[0])


def _refusal(scope: Scope, softmax: Node, stop: Stop) -> Refusal:
    # onnx-graphsurgeon compares nodes by content and cannot compare one with None
    other = stop.node is not None and stop.node is not softmax
    nodes = [softmax, stop.node] if other else [softmax]
    return Refusal(stop.code, stop.reason, scope.name, tuple(label(node) for node in nodes))


def _readings(scope: Scope, softmax: Node) -> Iterator[Reading | Stop]:
    """Each product that the scores may come from, masks first as they were before Expand."""
    probabilities = softmax.outputs[0]
    values = trace_values(Values(probabilities, (probabilities,)))
    if isinstance(values, Stop):
        yield values
        return
    stretched: list[Reading | Stop] = []
    for unexpand in (True, False):
        tensor = softmax.inputs[0]
        start = Scores(tensor, (tensor,), sinks_wanted=values.cut, stretched=unexpand)
        for scores in trace_scores(start):
            found = scores if isinstance(scores, Stop) else Reading(scope, softmax, scores, values)
            stretched.append(found)
    # a product that was found stands before the reason why another walk failed
    yield from sorted(stretched, key=lambda found: isinstance(found, Stop))


def _sites(reading: Reading) -> list[Site] | Stop:
    scope, softmax = reading.scope, reading.softmax
    assert reading.scores.product is not None
    rank = _rank(softmax) or reading.scores.product.query.rank
    if not _over_last_axis(softmax, rank, scope.opset):
        return Stop("softmax_axis", "the Softmax is not over the keys (the last axis)")
    operands = _operands(reading)
    if isinstance(operands, Stop):
        return operands
    masks = _masks(reading, operands.folding)
    if isinstance(masks, Stop):
        return masks
    stop = _shared(reading) or _stretched(reading, operands, masks) or _zeroed(reading, masks)
    if stop is not None:
        return stop
    plain = _site(reading, operands, masks)
    if isinstance(plain, Stop):
        return plain
    repeats = [unrepeated(source) for source in (operands.key, operands.value)]
    if repeats[0] is None or repeats[1] is None or repeats[0][1] != repeats[1][1]:
        return [plain]
    grouped = replace(operands, key=repeats[0][0], value=repeats[1][0], group=repeats[0][1])
    site = _site(reading, grouped, masks)
    return [plain] if isinstance(site, Stop) else [site, plain]


def _rank(softmax: Node) -> int | None:
    sizes = dims(softmax.inputs[0]) or dims(softmax.outputs[0])
    return None if sizes is None else len(sizes)


def _over_last_axis(softmax: Node, rank: int, opset: int) -> bool:
    axis = softmax.attrs.get("axis", -1 if opset >= 13 else 1)
    return axis in (-1, rank - 1)


# Operands -------------------------------------------------------------------------------------


def _operands(reading: Reading) -> Operands | Stop:
    product, values = reading.scores.product, reading.values.product
    assert product is not None
    assert values is not None
    node = reading.scores.nodes[-1]
    if product.query.rank != product.key.rank:
        return Stop("rank_unsupported", "Q and K are of different ranks", node)
    query, key = (climbed(source_of(factor)) for factor in (product.query, product.key))
    value = source_of(values.value)
    types = {_float_type(source.tensor) for source in (query, key, value)}
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
    return Operands(q, k, v, folding, group)


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


def _float_type(tensor: Tensor) -> int:
    known = element_type(tensor)
    node = producer(tensor)
    while known is None and node is not None and node.inputs:
        known = element_type(node.inputs[0])
        node = producer(node.inputs[0])
    return known or FLOATS[0]


# Masks ----------------------------------------------------------------------------------------


def _masks(reading: Reading, folding: Folding) -> tuple[Mask, ...] | Stop:
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
    if (mask.operand.tensor, mask.kind == "drop") in reading.values.zeroed:
        return replace(mask, fill=float("-inf"))
    product = reading.scores.product
    assert product is not None
    if mask.selects and _float_type(product.query.tensor) != FLOATS[0]:
        # scores in float32 know lower numbers than the operator's mask in half precision
        return replace(mask, fill=max(mask.fill, _HALF_LOWEST) if mask.fill > _NONE else mask.fill)
    return mask


def _view_rank(scores: Scores, view: int) -> int:
    assert scores.product is not None
    sizes = dims(scores.views[view])
    return scores.product.query.rank if sizes is None else len(sizes)


def _zeroed(reading: Reading, masks: tuple[Mask, ...]) -> Stop | None:
    """Probabilities set to zero must be those that a mask of the scores has made zero."""
    known = {(mask.operand.tensor, mask.kind == "drop") for mask in masks if mask.kind != "add"}
    for name, drops in reading.values.zeroed:
        if (name, drops) not in known:
            reason = f"probabilities are masked by {name} after the Softmax"
            return Stop("probabilities_masked", reason, reading.softmax)
    return None


# What cannot be taken -------------------------------------------------------------------------


def _shared(reading: Reading) -> Stop | None:
    """Whether something between the products is read, or leaves the graph, elsewhere."""
    scores, values = reading.scores, reading.values
    own = {id(node) for node in (*scores.nodes, reading.softmax, *values.nodes)}
    for code, word, nodes in (
        ("scores_shared", "scores", scores.nodes),
        ("probabilities_shared", "probabilities", (reading.softmax, *values.nodes[:-1])),
    ):
        odd = _odd(nodes)
        for node in nodes:
            reading_of = consumers if id(node) in odd else value_readers
            for tensor in node.outputs:
                readers = [node for node in reading_of(tensor) if id(node) not in own]
                if readers or tensor.name in reading.scope.outputs:
                    where = label(readers[0]) if readers else "an output of the graph"
                    return Stop(code, f"the {word} are also used by {where}", node)
    return None


def _odd(nodes: tuple[Node, ...]) -> set[int]:
    """Nodes whose results have shapes that Q and K do not tell: turned, with sinks, of rank 5."""
    if any(node.op == "Transpose" for node in nodes):
        return {id(node) for node in nodes}
    wide = {id(node) for node in nodes if len(dims(node.outputs[0]) or ()) > 4}
    edges = [i for i, node in enumerate(nodes) if node.op in ("Concat", "Slice")]
    for edge in edges:
        wide |= {id(node) for node in nodes[: edge + (nodes[edge].op == "Concat")]}
    return wide


def _stretched(reading: Reading, operands: Operands, masks: tuple[Mask, ...]) -> Stop | None:
    """What the products would stretch and the operator does not: batches, values, or queries."""
    reason = _broadcast(reading.scope, operands, masks)
    return None if reason is None else Stop("broadcast_unsupported", reason, reading.softmax)


def _broadcast(scope: Scope, operands: Operands, masks: tuple[Mask, ...]) -> str | None:
    declared = frozenset(
        size
        for tensor in scope.graph.inputs
        for size in tensor.shape or ()
        if isinstance(size, str)
    )
    sources = (operands.query, operands.key, operands.value)
    q, k, v = (_extents(source, declared) for source in sources)
    for names, a, b, axis in (("K and V", k, v, 0), ("K and V", k, v, 1), ("Q and K", q, k, 0)):
        if _apart(a[axis], b[axis]):
            return f"{names} differ in {('batch', 'heads')[axis]}: {a[axis]} and {b[axis]}"
    if isinstance(k[1], int) and isinstance(q[1], int):
        if q[1] % k[1]:
            return f"{q[1]} query heads are no multiple of {k[1]} key heads"
    elif k[1] != 1 and _apart(q[1], k[1]):
        return f"Q and K differ in heads: {q[1]} and {k[1]}"
    for mask in masks:
        sizes = (None,) * (4 - len(mask.sizes)) + mask.sizes
        for axis in (0, 1):
            if q[axis] == 1 and (sizes[axis] or 1) > 1:
                return f"a mask of {sizes[axis]} stretches a dimension of size 1"
    return None


def _extents(source: Source, declared: frozenset[str]) -> tuple[int | str | None, ...]:
    """Batch and heads: a number, a symbol of the graph's inputs, or None."""
    known, found = source.symbols(declared), list[int | str | None]()
    for axis in (0, 1):
        place: int | None = axis
        for step in reversed(source.steps):
            place = None if place is None else step.source(place)
        one = is_one(source.steps, axis)
        found.append(1 if one else None if place is None else known[place])
    return tuple(found)


def _apart(one: int | str | None, other: int | str | None) -> bool:
    """Whether one size may stretch the other: two numbers, two symbols, or 1 and a symbol."""
    if isinstance(one, str) and isinstance(other, str):
        return one != other
    if isinstance(one, str) or isinstance(other, str):
        return 1 in (one, other)
    return None not in (one, other) and one != other


# The site -------------------------------------------------------------------------------------


def _site(reading: Reading, operands: Operands, masks: tuple[Mask, ...]) -> Site | Stop:
    scores, values, softmax = reading.scores, reading.values, reading.softmax
    query, key, value = operands.query, operands.key, operands.value
    result = _result(reading, operands.folding)
    if result is None:
        return Stop("rank_unsupported", "the shape of the result cannot be made again", softmax)
    nodes = (*reversed(scores.nodes), softmax, *values.nodes)
    q, k, v = (_four(source) for source in (query, key, value))
    batch, heads, queries, keys = operands.folding.sizes
    q_heads, group = q[1] or heads, operands.group
    kv_heads = k[1] or v[1]
    return Site(
        name=label(softmax),
        scope=reading.scope.name,
        matcher="softmax",
        query=query.operand(),
        key=key.operand(),
        value=value.operand(),
        output=values.nodes[-1].outputs[0].name,
        scale=scores.factor * query.factor * key.factor,
        element_type=_float_type(query.tensor),
        nodes=tuple(dict.fromkeys(label(node) for node in nodes)),
        masks=masks,
        softcap=scores.softcap,
        sinks=scores.sinks,
        group=group,
        q_heads=q_heads or (kv_heads * group if kv_heads else None),
        kv_heads=kv_heads or (q_heads // group if q_heads else None),
        q_length=q[2] or queries,
        k_length=k[2] or v[2] or keys,
        head_dim=q[3] or k[3],
        value_dim=v[3],
        batch=q[0] or k[0] or batch,
        guarded=values.guarded or bool(values.zeroed),
        result=result,
        score_shapes=_score_shapes((*scores.nodes, softmax, *values.nodes[:-1])),
        unquantized=(*scores.unquantized, *values.unquantized),
        notes=_notes(reading, masks),
    )


def _four(source: Source) -> Dims:
    """The sizes in four dimensions, None where a step changes them."""
    known, found = source.sizes(), []
    for axis in range(4):
        place: int | None = axis
        for step in reversed(source.steps):
            place = None if place is None else step.source(place)
        found.append(None if place is None else known[place])
    return tuple(found)


def _result(reading: Reading, folding: Folding) -> tuple[Step, ...] | None:
    product = reading.values.product
    assert product is not None
    steps = folding.result(product.value.rank)
    return None if steps is None else (*steps, *(s for s in product.result if not _idle(s)))


def _idle(step: Step) -> bool:
    perm = getattr(step, "perm", None)
    return perm is not None and list(perm) == sorted(perm)


def _score_shapes(nodes: tuple[Node, ...]) -> tuple[tuple[str, int, int | None, int], ...]:
    """Shape nodes that look at scores or probabilities, whose sizes Q and K tell as well."""
    found = []
    for node in nodes:
        rank = len(dims(node.outputs[0]) or (None,) * 4)
        found += [(reader, rank) for reader in consumers(node.outputs[0]) if reader.op == "Shape"]
    return tuple(
        (node.outputs[0].name, node.attrs.get("start", 0), node.attrs.get("end"), rank)
        for node, rank in found
    )


def _notes(reading: Reading, masks: tuple[Mask, ...]) -> tuple[str, ...]:
    """What the operator does otherwise than the graph, for the report."""
    guarded = reading.values.guarded or bool(reading.values.zeroed)
    notes = list(dict.fromkeys(reading.scores.notes))
    product = reading.scores.product
    half = product is not None and _float_type(product.query.tensor) != FLOATS[0]
    if reading.scores.unquantized or reading.values.unquantized:
        notes.append("quantization: scores and probabilities are not rounded any more")
    added = [mask for mask in masks if mask.kind == "add"]
    narrowed = any(mask.element_type == FLOATS[0] for mask in added) and half
    if narrowed or any(mask.forbids and mask.fill > _NONE for mask in masks):
        notes.append("empty_rows: original mean(V) -> 0")
    elif any(mask.forbids for mask in masks) and not guarded:
        notes.append("empty_rows: original NaN -> 0")
    if added and (any(mask.fills for mask in masks) or "clamp" in " ".join(notes)):
        notes.append("empty_rows: original mean(V) -> mean of the keys that are masked once")
    return tuple(notes)
