"""Finds every attention in a model: matchers propose, proofs decide."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from sparsify import plugins, runtime
from sparsify.constants import sizes_in
from sparsify.masks import Masks
from sparsify.model import Model
from sparsify.places import Place, file_opset, interchangeable, places
from sparsify.prove import Prover, Verdict
from sparsify.site import Findings, Refusal, Site
from sparsify.view import Scope, element_type, scopes

OLDEST_OPSET = 12
"""The oldest ai.onnx opset in which a function body can refer to an attribute."""


def find_sites(model: Model) -> Findings:
    """Sites in graph order, each proved numerically, and a refusal for every candidate left.

    Raises:
        SparsifyError: onnxruntime is missing.
    """
    sites: list[Site] = []
    refusals: list[Refusal] = []
    runtime.onnxruntime()
    operator = plugins.get("operators", "SparseAttention")
    ours = tuple(_already_sparse(model, operator.domain))
    if ours:
        return Findings(refusals=ours)
    known: dict[bytes, Verdict] = {}
    found = zip(scopes(model.proto, model.folder), places(model.proto), strict=True)
    for scope, place in found:
        groups = list(_by_output(scope))
        if not groups:  # most bodies are small, and a prover looks at all that is around them
            continue
        prover = Prover(model, operator, place, sizes_in(scope), known)
        verdicts = [_verdict(group, scope, prover) for group in groups]
        masks = Masks(model, place)
        proved = [masks.understand(v) for v in verdicts if isinstance(v, Site)]
        sites.extend(_in_graph_order(place, proved))
        refusals.extend(v for v in verdicts if isinstance(v, Refusal))
    return Findings(tuple(sites), tuple(refusals))


def _already_sparse(model: Model, domain: str) -> Iterator[Refusal]:
    """A model of ours is left as it is: one operator body serves one file."""
    for place in places(model.proto):
        for node in place.graph.node:
            if node.domain == domain:
                reason = f"is {node.op_type} already: this file was written by sparsify"
                yield Refusal("already_sparse", reason, place.name, (node.name or node.output[0],))


def _by_output(scope: Scope) -> Iterator[list[Site | Refusal]]:
    """Candidates of all matchers, those for the same output together."""
    groups: dict[str, list[Site | Refusal]] = {}
    for name, matcher in plugins.every("matchers"):
        for found in matcher.match(scope):
            key = found.output if isinstance(found, Site) else f"{name} {found.nodes}"
            groups.setdefault(key, []).append(found)
    yield from groups.values()


def _verdict(candidates: list[Site | Refusal], scope: Scope, prover: Prover) -> Site | Refusal:
    objection, first = "", candidates[0]
    for candidate in candidates:
        if isinstance(candidate, Refusal):
            return candidate
        reason = _out_of_reach(candidate, scope, prover)
        if reason is not None:
            return Refusal(reason[0], reason[1], scope.name, candidate.nodes)
        found = prover.prove(candidate)
        if isinstance(found, float):
            return replace(candidate, proof=found)
        objection = objection or found
    return Refusal("proof_failed", f"not proved equal: {objection}", scope.name, first.nodes)


def _out_of_reach(site: Site, scope: Scope, prover: Prover) -> tuple[str, str] | None:
    """Why a site cannot be written where it stands, whatever it computes."""
    opset = file_opset(prover.model.proto)
    if scope.opset < OLDEST_OPSET:
        return "opset_too_old", f"ai.onnx opset {scope.opset} is older than {OLDEST_OPSET}"
    if not interchangeable(scope.opset, opset):
        reason = f"its function uses ai.onnx opset {scope.opset}, the main graph {opset}"
        return "mixed_opset", f"{reason}: one operator body cannot serve both"
    if site.output not in prover.place.order:
        return "scope_unsupported", "it begins in one graph and ends in a body inside it"
    if prover.place.in_function and not _typed(site, scope):
        return "types_unknown", f"the calls of its {scope.name} do not fix the float type"
    return None


def _typed(site: Site, scope: Scope) -> bool:
    """Whether the type of anything around a site is known, and not only assumed."""
    names = {site.output, site.query.tensor, site.key.tensor, site.value.tensor}
    tensors = [t for node in scope.nodes() for t in (*node.inputs, *node.outputs)]
    return any(t.name in names and element_type(t) is not None for t in tensors)


def _in_graph_order(place: Place, sites: list[Site]) -> Iterator[Site]:
    """Sites in the order of their nodes, under unique names that say where they stand."""
    counts = Counter(site.name for site in sites)
    for site in sorted(sites, key=lambda site: place.order[site.output]):
        name = site.name if counts[site.name] == 1 else f"{site.name} ({site.output})"
        yield replace(site, name=f"{place.name}/{name}" if place.name else name)
