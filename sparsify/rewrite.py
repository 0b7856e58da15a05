"""Carries out a plan: the model with its planned sites replaced, and everything else as it was."""

from collections.abc import Sequence
from importlib import metadata

from onnx import ModelProto, NodeProto, helper

from sparsify import plugins
from sparsify.builder import Builder
from sparsify.emit import Choice, Emitter, uses_of
from sparsify.errors import SparsifyError
from sparsify.graft import graft, names_in
from sparsify.model import Model
from sparsify.plan import Plan, choice_for
from sparsify.plugins import Operator
from sparsify.site import Site

METADATA_KEY = "ai.sparsify.version"


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
    graft(result, _replacements(model, operator, uses, chosen))
    _declare(result, operator, model.opset, chosen[0][0].element_type, uses)
    return result


def _chosen(sites: Sequence[Site], plan: Plan) -> list[tuple[Site, Choice]]:
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


def _replacements(
    model: Model, operator: Operator, uses: frozenset[str], chosen: list[tuple[Site, Choice]]
) -> dict[str, list[NodeProto]]:
    """New nodes by the tensor they make; what sites share is written with the first of them."""
    taken = names_in(model.proto.graph)
    builder = Builder(model.opset, "sparsify/", taken)
    emitter = Emitter(builder, operator, uses)
    replacements = {}
    for site, choice in chosen:
        start = len(builder.nodes)
        emitter.site(site, choice, site.output)
        replacements[site.output] = builder.nodes[start:]
    shapes = [(site, shape) for site, _ in chosen for shape in site.score_shapes]
    for index, (site, (output, first, last)) in enumerate(shapes):
        # these stand before the sites they belong to, and share nothing with them
        apart = Builder(model.opset, f"sparsify/shape_{index}/", taken)
        Emitter(apart, operator, uses).score_shape(site, first, last, output)
        replacements[output] = apart.nodes
    return replacements


def _declare(
    model: ModelProto, operator: Operator, opset: int, element_type: int, uses: frozenset[str]
) -> None:
    """Add our opset import, the operator's body, and who wrote it."""
    model.opset_import.append(helper.make_opsetid(operator.domain, operator.version))
    model.functions.append(operator.function(opset, element_type, uses))
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, metadata.version("onnx-sparsify")
