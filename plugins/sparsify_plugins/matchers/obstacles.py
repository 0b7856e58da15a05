"""What cannot be taken although it reads as an attention: shared tensors, stretched sizes."""

from sparsify.constants import axis_attribute, dims
from sparsify.layout import is_one
from sparsify.site import Mask
from sparsify.view import Node, Scope, Tensor, consumers, label, producer
from sparsify_plugins.matchers.operands import Source
from sparsify_plugins.matchers.reading import Operands, Reading
from sparsify_plugins.matchers.walk import Stop, fill_number, last_axis, value_readers


def obstacle(reading: Reading, operands: Operands, masks: tuple[Mask, ...]) -> Stop | None:
    """Why a reading is left although it was understood, if there is a reason."""
    return _shared(reading) or _stretched(reading, operands, masks) or _zeroed(reading, masks)


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
                readers = [node for node in readers if not measured(reading.scope, node)]
                if readers or tensor.name in reading.scope.outputs:
                    where = label(readers[0]) if readers else "an output of the graph"
                    return Stop(code, f"the {word} are also used by {where}", node)
    return None


def measured(scope: Scope, node: Node) -> bool:
    """Whether a node only reshapes a tensor for its sizes to be read."""
    if node.op not in ("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity"):
        return False
    result = node.outputs[0]
    readers = consumers(result)
    kept = result.name in scope.outputs or not readers
    return not kept and all(n.op == "Shape" or measured(scope, n) for n in readers)


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


def _zeroed(reading: Reading, masks: tuple[Mask, ...]) -> Stop | None:
    """Probabilities set to zero must be those that a mask of the scores has made zero."""
    known = {(mask.operand.tensor, mask.kind == "drop") for mask in masks if mask.selects}
    added = {mask.operand.tensor for mask in masks if mask.kind == "add"}
    for tensor, drops in reading.values.zeroed:
        empty = _empty_rows_of(tensor) if drops else None
        if (tensor.name, drops) not in known and (empty is None or empty not in added):
            reason = f"probabilities are masked by {tensor.name} after the Softmax"
            return Stop("probabilities_masked", reason, reading.softmax)
    return None


def _empty_rows_of(condition: Tensor) -> str | None:
    """The additive mask of which a condition tells the rows that are all minus infinity."""
    equal = producer(condition, "Equal")
    largest = None if equal is None else producer(equal.inputs[0], "ReduceMax")
    if equal is None or largest is None or fill_number(equal.inputs[1]) != float("-inf"):
        return None
    axes, keeps = axis_attribute(largest, "axes", 1), largest.attrs.get("keepdims", 1)
    last = axes is not None and len(axes) == 1 and last_axis(largest, axes[0])
    return str(largest.inputs[0].name) if last and keeps else None
