"""Finds every attention in a model: matchers propose, proofs decide."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from sparsify import plugins, runtime
from sparsify.model import Model
from sparsify.places import places
from sparsify.prove import Prover, Verdict
from sparsify.site import MAIN_SCOPE, Findings, Refusal, Site
from sparsify.view import Scope, scopes

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
    if any(opset.domain == operator.domain for opset in model.proto.opset_import):
        return Findings(refusals=tuple(_already_sparse(model, operator.domain)))
    known: dict[bytes, Verdict] = {}
    found = zip(scopes(model.proto, model.folder), places(model.proto), strict=True)
    for scope, place in found:
        prover = Prover(model, operator, place, known)
        for candidates in _by_output(scope):
            verdict = _verdict(candidates, scope, prover)
            if isinstance(verdict, Site):
                sites.append(verdict)
            else:
                refusals.append(verdict)
    return Findings(tuple(_named_apart(_in_graph_order(model, sites))), tuple(refusals))


def _already_sparse(model: Model, domain: str) -> Iterator[Refusal]:
    """A model of ours is left as it is: one operator body serves one file."""
    for node in model.proto.graph.node:
        if node.domain == domain:
            reason = f"is {node.op_type} already: this file was written by sparsify"
            yield Refusal("already_sparse", reason, MAIN_SCOPE, (node.name or node.output[0],))


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
        reason = _out_of_reach(scope)
        if reason is not None:
            return Refusal(reason[0], reason[1], scope.name, candidate.nodes)
        found = prover.prove(candidate)
        if isinstance(found, float):
            return replace(candidate, proof=found)
        objection = objection or found
    return Refusal("proof_failed", f"not proved equal: {objection}", scope.name, first.nodes)


def _out_of_reach(scope: Scope) -> tuple[str, str] | None:
    if scope.name != MAIN_SCOPE:
        return "scope_unsupported", f"stands inside {scope.name}; only the main graph is rewritten"
    if scope.opset < OLDEST_OPSET:
        return "opset_too_old", f"ai.onnx opset {scope.opset} is older than {OLDEST_OPSET}"
    return None


def _named_apart(sites: list[Site]) -> Iterator[Site]:
    """Sites whose names are unique: node names need not be."""
    counts = Counter(site.name for site in sites)
    for site in sites:
        unique = counts[site.name] == 1
        yield site if unique else replace(site, name=f"{site.name} ({site.output})")


def _in_graph_order(model: Model, sites: list[Site]) -> list[Site]:
    order = {name: i for i, node in enumerate(model.proto.graph.node) for name in node.output}
    return sorted(sites, key=lambda site: order[site.output])
