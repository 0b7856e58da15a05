"""The site that a reading comes to, with what the operator does otherwise than the graph."""

from sparsify.constants import Dims, dims
from sparsify.layout import Cast, Step
from sparsify.site import Mask, Site
from sparsify.view import FLOATS, Node, consumers, label
from sparsify_plugins.matchers.obstacles import measured
from sparsify_plugins.matchers.operands import Source
from sparsify_plugins.matchers.reading import NONE, Operands, Reading, float_type
from sparsify_plugins.matchers.walk import Stop


def site_of(reading: Reading, operands: Operands, masks: tuple[Mask, ...]) -> Site | Stop:
    """The normal form, or why the result cannot be brought into its shape."""
    scores, values, softmax = reading.scores, reading.values, reading.softmax
    query, key, value = operands.query, operands.key, operands.value
    result = _result(reading, operands)
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
        element_type=float_type(query.tensor),
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
        batch_multiple=operands.folding.windows,
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


def _result(reading: Reading, operands: Operands) -> tuple[Step, ...] | None:
    product = reading.values.product
    assert product is not None
    steps = operands.folding.result(product.value.rank)
    if steps is None:
        return None
    wide = (Cast(FLOATS[0]),) if operands.widened else ()
    return (*steps, *(step for step in product.result if not _idle(step)), *wide)


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
    half = product is not None and float_type(product.query.tensor) != FLOATS[0]
    if reading.scores.unquantized or reading.values.unquantized:
        notes.append(
            "quantization: scores and probabilities are neither rounded nor clipped any more"
        )
    own = (*reading.scores.nodes, reading.softmax, *reading.values.nodes[:-1])
    readers = [reader for node in own for reader in consumers(node.outputs[0])]
    if any(measured(reading.scope, reader) for reader in readers):
        notes.append("sizes: the scores are still computed, since their reshaped size is read")
    added = [mask for mask in masks if mask.kind == "add"]
    narrowed = any(mask.element_type == FLOATS[0] for mask in added) and half
    if narrowed or any(mask.forbids and mask.fill > NONE for mask in masks):
        notes.append("empty_rows: original mean(V) -> 0")
    elif any(mask.forbids for mask in masks) and not guarded:
        notes.append("empty_rows: original NaN -> 0")
    if added and (any(mask.fills for mask in masks) or "clamp" in " ".join(notes)):
        notes.append("empty_rows: original mean(V) -> mean of the keys that are masked once")
    return tuple(notes)
