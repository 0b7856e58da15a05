"""Carries out a plan: the model with its planned sites replaced, and everything else as it was."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata

from onnx import FunctionProto, ModelProto, NodeProto

from sparsify import plugins
from sparsify.bodies import bodies_of, imports_of
from sparsify.builder import Builder, Call
from sparsify.emit import Choice, Emitter, uses_of
from sparsify.errors import SparsifyError
from sparsify.graft import graft
from sparsify.model import Model
from sparsify.places import Place, file_opset, home_of, places, prefix_of
from sparsify.plan import Plan, choice_for
from sparsify.plugins import Operator
from sparsify.site import Site
from sparsify.uses import names_in

METADATA_KEY = "ai.sparsify.version"

Chosen = list[tuple[Site, Choice]]
New = dict[str, dict[str, list[NodeProto]]]
"""New nodes by place and by the tensor whose node they replace."""


def apply_plan(model: Model, sites: Sequence[Site], plan: Plan) -> ModelProto:
    """A new model in which every site that the plan replaces is the operator.

    `sites` are what `find_sites` found in the same model.

    Raises:
        SparsifyError: the plan was made for another graph, or names a site that is not there.
    """
    if plan.graph != model.graph_hash():
        raise SparsifyError(f"{model.path}: the plan was made for another graph; make it again")
    result = ModelProto()
    result.CopyFrom(model.proto)
    chosen = _chosen(sites, plan)
    if not chosen:
        return result
    operator: Operator = plugins.get("operators", "SparseAttention")
    uses = frozenset[str]().union(*(uses_of(site, choice) for site, choice in chosen))
    writer = _Writer(operator, uses, places(model.proto), names_in(model.proto))
    graft(result, writer.replacements(chosen))
    bodies = bodies_of(writer.calls, file_opset(model.proto), chosen[0][0].element_type)
    _declare(result, writer.calls, bodies, {site.scope for site, _ in chosen})
    return result


def _chosen(sites: Sequence[Site], plan: Plan) -> Chosen:
    """The sites to replace, in graph order, each with how."""
    by_name = {(site.scope, site.name): site for site in sites}
    choices: dict[tuple[str, str], Choice] = {}
    for decision in plan.decisions:
        key = (decision.scope, decision.site)
        if key not in by_name:
            raise SparsifyError(f"site {decision.site}: is not in the model; make the plan again")
        if decision.replaced:
            choices[key] = choice_for(decision, plan.max_length)
    return [(site, choices[key]) for key, site in by_name.items() if key in choices]


@dataclass(frozen=True)
class _Writer:
    """Writes new nodes for each place of a file; `taken` are the names that are in use."""

    operator: Operator
    uses: frozenset[str]
    found: list[Place]
    taken: set[str]
    calls: list[Call] = field(default_factory=list)

    def replacements(self, chosen: Chosen) -> New:
        """The nodes of all sites, and of the Shapes that look at their scores."""
        new: New = {}
        for place in self.found:
            here = [(site, choice) for site, choice in chosen if site.scope == place.name]
            if here:
                new[place.name] = self._sites(place, here)
        self._shapes([site for site, _ in chosen], new)
        return new

    def _sites(self, place: Place, chosen: Chosen) -> dict[str, list[NodeProto]]:
        """The sites of one place: a body cannot share with others what it does not see."""
        builder = Builder(place.opset, prefix_of(place.name), self.taken)
        emitter = Emitter(builder, self.operator, self.uses)
        self.taken.update(name for site, _ in chosen for n in site.before for name in n.output)
        nodes = {}
        for site, choice in chosen:
            start = len(builder.nodes)
            emitter.site(site, choice, site.output)
            nodes[site.output] = builder.nodes[start:]
        self.calls.extend(builder.calls)
        for node in builder.nodes:
            self.taken.update((node.name, *node.output))
        return nodes

    def _shapes(self, sites: Sequence[Site], new: New) -> None:
        """Shapes of scores; they stand before the sites they belong to, and share nothing."""
        by_name = {place.name: place for place in self.found}
        shapes = [(site, shape) for site in sites for shape in site.score_shapes]
        for index, (site, (output, first, last, rank)) in enumerate(shapes):
            home = home_of(output, by_name[site.scope], self.found)
            if home is None:
                continue  # the scores stay alive for it
            builder = Builder(home.opset, f"sparsify/shape_{index}/", self.taken)
            emitter = Emitter(builder, self.operator, self.uses)
            emitter.score_shape(site, first, last, rank, output)
            new.setdefault(home.name, {})[output] = builder.nodes


def _declare(
    model: ModelProto, calls: Sequence[Call], bodies: Sequence[FunctionProto], scopes: set[str]
) -> None:
    """Add our opset imports, the bodies of what is called, and who wrote it."""
    calling = [place.layers[0] for place in places(model) if place.name in scopes]
    functions = [graph for graph in calling if isinstance(graph, FunctionProto)]
    for imports in (model.opset_import, *(function.opset_import for function in functions)):
        known = {opset.domain for opset in imports}
        imports.extend(opset for opset in imports_of(calls) if opset.domain not in known)
    # onnx.reference wants functions before their callers
    at = 0 if functions else len(model.functions)
    for body in reversed(bodies):
        model.functions.insert(at, body)
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, metadata.version("onnx-sparsify")
