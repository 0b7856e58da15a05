"""Attention written out as MatMul, Softmax, MatMul, with everything exporters put between them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sparsify.constants import dims
from sparsify.layout import Squeeze, Unsqueeze
from sparsify.site import Mask, Refusal, Site
from sparsify.view import FLOATS, Node, Scope, Tensor, consumers, element_type, label, producer
from sparsify_plugins.matchers.operands import (
    Source,
    key_source,
    query_source,
    unrepeated,
    value_source,
)
from sparsify_plugins.matchers.scores import Scores, trace_scores
from sparsify_plugins.matchers.walk import Stop, fill_number, passes_through, value_readers


@dataclass(frozen=True)
class Values:
    """From the Softmax down to the product with the values (`nodes[-1]`)."""

    nodes: tuple[Node, ...]
    guarded: bool


@dataclass(frozen=True)
class SoftmaxMatcher:
    """Finds `softmax(Q K^T ...) V` around each Softmax."""

    def match(self, scope: Scope) -> Iterator[Site | Refusal]:
        """One or two sites (GQA repeat undone, or not), or one refusal, for each Softmax."""
        for node in scope.nodes():
            if node.op == "Softmax":
                yield from _candidates(scope, node)


MATCHER = SoftmaxMatcher()


def _candidates(scope: Scope, softmax: Node) -> Iterator[Site | Refusal]:
    found = _read(scope, softmax)
    if isinstance(found, Stop):
        # onnx-graphsurgeon compares nodes by content and cannot compare one with None
        other = found.node is not None and found.node is not softmax
        nodes = [softmax, found.node] if other else [softmax]
        yield Refusal(found.code, found.reason, scope.name, tuple(label(node) for node in nodes))
    else:
        yield from found


def _read(scope: Scope, softmax: Node) -> list[Site] | Stop:
    values = _trace_values(softmax)
    if isinstance(values, Stop):
        return values
    scores = trace_scores(Scores(softmax.inputs[0]))
    if isinstance(scores, Stop):
        return scores
    ranks = _ranks(softmax, scores, values)
    rank = max(ranks, default=0)
    if len(ranks) != 1 or not 2 <= rank <= 4:
        listed = " and ".join(map(str, sorted(ranks))) or "unknown"
        return Stop("rank_unsupported", f"operands of rank {listed} are not supported")
    if not _over_last_axis(softmax, rank, scope.opset):
        return Stop("softmax_axis", "the Softmax is not over the keys (the last axis)")
    return _shared(scope, softmax, scores, values) or _sites(scope, softmax, scores, values, rank)


def _trace_values(softmax: Node) -> Values | Stop:
    """Follow the probabilities down to the one product that takes them on its left."""
    nodes, tensor, guarded = [], softmax.outputs[0], False
    while True:
        readers = value_readers(tensor)
        guard = _nan_guard(readers)
        if guard:
            nodes.extend(guard)
            tensor, guarded = guard[-1].outputs[0], True
            continue
        products = [node for node in readers if node.op == "MatMul"]
        if products and len(readers) > 1:
            return Stop("probabilities_shared", "the probabilities are used elsewhere", readers[-1])
        if len(readers) != 1:
            return Stop("not_attention", "the Softmax's result is not multiplied with values")
        if not products and not passes_through(readers[0]):
            reason = f"the Softmax's result goes to {readers[0].op}, not to a product with values"
            return Stop("not_attention", reason, readers[0])
        nodes.append(readers[0])
        if products:
            break
        tensor = readers[0].outputs[0]
    if nodes[-1].inputs[0] is not tensor:
        return Stop("probabilities_on_right", "the probabilities are the right factor", nodes[-1])
    return Values(tuple(nodes), guarded)


def _nan_guard(readers: list[Node]) -> list[Node]:
    """IsNaN and Where(it, 0, probabilities), which turn rows without keys into zeros."""
    by_op = {node.op: node for node in readers}
    if len(readers) != 2 or by_op.keys() != {"IsNaN", "Where"}:
        return []
    test, choice = by_op["IsNaN"], by_op["Where"]
    zero = fill_number(choice.inputs[1])
    return [test, choice] if choice.inputs[0] is test.outputs[0] and zero == 0 else []


def _ranks(softmax: Node, scores: Scores, values: Values) -> set[int]:
    """The ranks of all that takes part, where known; masks of higher rank show in the Softmax."""
    product = scores.nodes[-1]
    tensors = [*product.inputs, product.outputs[0], softmax.outputs[0]]
    tensors += [values.nodes[-1].inputs[1], values.nodes[-1].outputs[0]]
    return {len(sizes) for sizes in map(dims, tensors) if sizes is not None}


def _over_last_axis(softmax: Node, rank: int, opset: int) -> bool:
    axis = softmax.attrs.get("axis", -1 if opset >= 13 else 1)
    return axis in (-1, rank - 1)


def _shared(scope: Scope, softmax: Node, scores: Scores, values: Values) -> Stop | None:
    """Whether something between the products is read, or leaves the graph, elsewhere."""
    own = {id(node) for node in (*scores.nodes, softmax, *values.nodes)}
    for code, word, nodes in (
        ("scores_shared", "scores", scores.nodes),
        ("probabilities_shared", "probabilities", (softmax, *values.nodes[:-1])),
    ):
        for node in nodes:
            for tensor in node.outputs:
                readers = [node for node in value_readers(tensor) if id(node) not in own]
                if readers or tensor.name in scope.outputs:
                    where = label(readers[0]) if readers else "an output of the graph"
                    return Stop(code, f"the {word} are also used by {where}", node)
    return None


def _sites(
    scope: Scope, softmax: Node, scores: Scores, values: Values, rank: int
) -> list[Site] | Stop:
    product, last = scores.nodes[-1], values.nodes[-1]
    query = query_source(product.inputs[0], rank)
    key = key_source(product.inputs[1], rank)
    value = value_source(last.inputs[1], rank)
    types = {_float_type(source.tensor) for source in (query, key, value)}
    if len(types) != 1 or not types <= set(FLOATS):
        return Stop("mixed_dtype", "Q, K and V are not of one float type", product)
    broadcast = _broadcast(query, key, value, scores.masks)
    if broadcast is not None:
        return Stop("broadcast_unsupported", broadcast, product)
    plain = _site(scope, softmax, scores, values, (query, key, value))
    repeats = [unrepeated(source) for source in (key, value)]
    if repeats[0] is None or repeats[1] is None or repeats[0][1] != repeats[1][1]:
        return [plain]
    sources = (query, repeats[0][0], repeats[1][0])
    grouped = _site(scope, softmax, scores, values, sources, group=repeats[0][1])
    return [grouped, plain]


def _broadcast(query: Source, key: Source, value: Source, masks: tuple[Mask, ...]) -> str | None:
    """What the products would stretch and the operator does not: batches, values, or queries."""
    q, k, v = (source.extents() for source in (query, key, value))
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


def _apart(one: int | str | None, other: int | str | None) -> bool:
    """Whether one size may stretch the other: two numbers, two symbols, or 1 and a symbol."""
    if isinstance(one, str) and isinstance(other, str):
        return one != other
    if isinstance(one, str) or isinstance(other, str):
        return 1 in (one, other)
    return None not in (one, other) and one != other


def _site(
    scope: Scope,
    softmax: Node,
    scores: Scores,
    values: Values,
    sources: tuple[Source, Source, Source],
    group: int = 1,
) -> Site:
    query, key, value = sources
    nodes = (*reversed(scores.nodes), softmax, *values.nodes)
    q, k, v = ((None,) * (4 - s.rank) + s.sizes() for s in sources)
    kv_heads = k[1] or v[1]
    masks = tuple(_fitted(mask, query.rank) for mask in reversed(scores.masks))
    return Site(
        name=label(softmax),
        scope=scope.name,
        matcher="softmax",
        query=query.operand(),
        key=key.operand(),
        value=value.operand(),
        output=values.nodes[-1].outputs[0].name,
        scale=scores.factor * query.factor * key.factor,
        element_type=_float_type(query.tensor),
        nodes=tuple(label(node) for node in nodes),
        masks=masks,
        softcap=scores.softcap,
        group=group,
        q_heads=q[1] or (kv_heads * group if kv_heads else None),
        kv_heads=kv_heads or (q[1] // group if q[1] else None),
        q_length=q[2],
        k_length=k[2] or v[2],
        head_dim=q[3] or k[3],
        value_dim=v[3],
        batch=q[0] or k[0],
        guarded=values.guarded,
        result=(Squeeze(tuple(range(4 - query.rank))),) if query.rank < 4 else (),
        score_shapes=_score_shapes(nodes[:-1]),
        notes=_empty_rows(masks, values.guarded),
    )


def _score_shapes(nodes: tuple[Node, ...]) -> tuple[tuple[str, int, int | None], ...]:
    """Shape nodes that look at scores or probabilities, whose sizes Q and K tell as well."""
    readers = [reader for node in nodes for reader in consumers(node.outputs[0])]
    return tuple(
        (reader.outputs[0].name, reader.attrs.get("start", 0), reader.attrs.get("end"))
        for reader in readers
        if reader.op == "Shape"
    )


def _empty_rows(masks: tuple[Mask, ...], guarded: bool) -> tuple[str, ...]:
    """What changes in rows that the masks leave without any key: the operator gives zeros."""
    if any(mask.forbids and mask.fill > float("-inf") for mask in masks):
        return ("empty_rows: original mean(V) -> 0",)
    if any(mask.forbids for mask in masks) and not guarded:
        return ("empty_rows: original NaN -> 0",)
    return ()


def _fitted(mask: Mask, rank: int) -> Mask:
    """A mask aligned with scores of four dimensions, as broadcasting aligned it with `rank`."""
    missing = 4 - rank
    if not missing or len(mask.sizes) != rank:
        return mask
    operand = mask.operand.then(Unsqueeze(tuple(range(missing))))
    return replace(mask, operand=operand, sizes=(1,) * missing + mask.sizes)


def _float_type(tensor: Tensor) -> int:
    known = element_type(tensor)
    node = producer(tensor)
    while known is None and node is not None and node.inputs:
        known = element_type(node.inputs[0])
        node = producer(node.inputs[0])
    return known or FLOATS[0]
