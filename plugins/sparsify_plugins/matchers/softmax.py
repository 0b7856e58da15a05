"""Attention written out as product, Softmax, product, with all that exporters put between."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sparsify.constants import dims
from sparsify.site import Refusal, Site
from sparsify.view import Node, Scope, label
from sparsify_plugins.matchers.normal_form import site_of
from sparsify_plugins.matchers.obstacles import obstacle
from sparsify_plugins.matchers.operands import unrepeated
from sparsify_plugins.matchers.reading import Reading, masks_of, operands_of
from sparsify_plugins.matchers.scores import Scores, trace_scores
from sparsify_plugins.matchers.values import Values, trace_values
from sparsify_plugins.matchers.walk import Stop


@dataclass(frozen=True)
class SoftmaxMatcher:
    """Finds `softmax(Q K^T ...) V` around each Softmax."""

    def match(self, scope: Scope) -> Iterator[Site | Refusal]:
        """Sites, the likeliest first, or one refusal, for each Softmax."""
        for node in scope.nodes():
            if node.op == "Softmax":
                yield from _candidates(scope, node)


MATCHER = SoftmaxMatcher()


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
    operands = operands_of(reading)
    if isinstance(operands, Stop):
        return operands
    masks = masks_of(reading, operands.folding)
    if isinstance(masks, Stop):
        return masks
    stop = obstacle(reading, operands, masks)
    if stop is not None:
        return stop
    plain = site_of(reading, operands, masks)
    if isinstance(plain, Stop):
        return plain
    repeats = [unrepeated(source) for source in (operands.key, operands.value)]
    if repeats[0] is None or repeats[1] is None or repeats[0][1] != repeats[1][1]:
        return [plain]
    grouped = replace(operands, key=repeats[0][0], value=repeats[1][0], group=repeats[0][1])
    site = site_of(reading, grouped, masks)
    return [plain] if isinstance(site, Stop) else [site, plain]


def _rank(softmax: Node) -> int | None:
    sizes = dims(softmax.inputs[0]) or dims(softmax.outputs[0])
    return None if sizes is None else len(sizes)


def _over_last_axis(softmax: Node, rank: int, opset: int) -> bool:
    axis = softmax.attrs.get("axis", -1 if opset >= 13 else 1)
    return axis in (-1, rank - 1)
