"""Checks a site's normal form by numbers before anything may be planned on it.

The site's nodes, cut out between its operands and its output, and the operator's function body with
everything kept run side by side in ONNX Runtime on random inputs, with masks that really mask. A
matcher can be wrong; a rewrite must not be silently wrong. Sites that differ in names only, as the
layers of a model do, are proved once.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from sparsify import runtime
from sparsify.bodies import bodies_of, imports_of
from sparsify.builder import Builder
from sparsify.constants import Dims
from sparsify.emit import Choice, Emitter, uses_of
from sparsify.errors import SparsifyError
from sparsify.model import Model, inlined, overridable_names
from sparsify.places import Place
from sparsify.plugins import Operator
from sparsify.site import Given, Site
from sparsify.substitute import HALVES, fitting, in_float, written_out
from sparsify.trial import boundary, contradiction, feeds, trial_sizes
from sparsify.uses import bodies, inputs_of

TOLERANCE: dict[int, float] = {
    TensorProto.FLOAT: 1e-4,
    TensorProto.FLOAT16: 2e-2,
    TensorProto.BFLOAT16: 1e-1,
}
"""Largest difference allowed, relative to the largest value of the output."""

_ELEMENTS = 1 << 26
"""Score elements of the largest trial; a site fixed at a larger size is not proved."""

_TRIAL = "sparsify_trial_output"

_NEAR = 200
"""More nodes than lie between a site's boundary and any shape that it computes itself."""

_OPEN_SIZES = (
    ("batch", "q_length"),
    ("batch", "k_length"),
    ("q_length", "batch"),
    ("q_length",),
    ("k_length",),
)
"""What the open sizes of a tensor outside the site may be, the likeliest first."""

Verdict = str | float
"""Why a site is not proved, or the error at which it is, relative to the output's largest value."""


@dataclass(frozen=True)
class Cut:
    """The nodes of a site, in order; what else they read, and the Shapes of tensors outside it."""

    nodes: list[NodeProto]
    open_ends: set[str]
    leaves: frozenset[str]


@dataclass(frozen=True)
class Walk:
    """Indices of the nodes above some tensors, names that nothing makes, and Shape nodes passed."""

    inside: set[int]
    open_ends: set[str]
    shapes: list[int]


@dataclass(frozen=True)
class Prover:
    """Proves the sites that stand in one graph of a model.

    `shapes` are the sizes of its tensors as far as they are known, `known` are verdicts by form.
    """

    model: Model
    operator: Operator
    place: Place
    shapes: Mapping[str, Dims | None] = field(default_factory=dict)
    known: dict[bytes, Verdict] = field(default_factory=dict)
    _makers: dict[str, int] = field(default_factory=dict)
    _nodes: list[NodeProto] = field(default_factory=list)
    _stored: dict[str, TensorProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes.extend(self.place.nodes())
        for index, node in enumerate(self._nodes):
            self._makers.update(dict.fromkeys(node.output, index))
        overridable = overridable_names(self.model.proto)
        for tensor in self.place.stored():
            if tensor.name not in overridable:
                self._stored[tensor.name] = tensor

    def prove(self, site: Site) -> Verdict:
        """The error of the site's normal form; a sentence where it is not proved."""
        conflict = contradiction(site)
        if conflict is not None:
            return conflict
        leaves = self._cut(site, boundary(site)).leaves
        verdicts = []
        for sizes in _OPEN_SIZES if leaves else ((),):
            given = tuple(self._leaf(name, sizes) for name in sorted(leaves))
            verdict = self._proved(replace(site, given=(*site.given, *given)))
            if isinstance(verdict, float):
                return verdict
            verdicts.append(verdict)
        return verdicts[0]

    def _proved(self, site: Site) -> Verdict:
        drawn = boundary(site)
        cut = self._cut(site, drawn)
        if cut.open_ends:
            names = ", ".join(sorted(cut.open_ends)[:3])
            return f"its nodes also read {names}, from outside the site"
        if any(a.ref_attr_name for node in cut.nodes for a in node.attribute):
            return "its nodes refer to attributes of the function they stand in"
        trial = self._trial(site, cut.nodes, drawn)
        form = _form(trial) + repr(_sizes_of(site)).encode()
        if form not in self.known:
            self.known[form] = _verdict(site, trial)
        return self.known[form]

    def _cut(self, site: Site, drawn: Collection[str]) -> "Cut":
        """What computes the site from its boundary; sizes of tensors outside it are leaves."""
        targets = [site.output, *(name for _, name in site.also)]
        shapes = self._walk(targets, drawn, into_shapes=False).shapes
        leaves: set[str] = set()
        seen: set[int] = set()
        while shapes:
            index = shapes.pop()
            if index in seen:
                continue
            seen.add(index)
            node = self._nodes[index]
            above = self._walk([node.input[0]], drawn, into_shapes=False, limit=_NEAR)
            if above.open_ends or len(above.inside) >= _NEAR:
                leaves.add(node.output[0])
            else:
                shapes.extend(above.shapes)
        walk = self._walk(targets, {*drawn, *leaves}, into_shapes=True)
        nodes = [self._unquantized(self._nodes[index], site) for index in sorted(walk.inside)]
        return Cut(nodes, walk.open_ends, frozenset(leaves))

    def _walk(
        self, targets: list[str], drawn: Container[str], *, into_shapes: bool, limit: int = 1 << 30
    ) -> "Walk":
        """Everything above `targets` up to the boundary, and above Shape nodes only if asked."""
        inside, open_ends, shapes, todo = set[int](), set[str](), list[int](), list(targets)
        while todo and len(inside) < limit:
            name = todo.pop()
            if name in drawn or name in self._stored:
                continue
            index = self._makers.get(name)
            if index is None:
                open_ends.add(name)
            elif index not in inside:
                inside.add(index)
                node = self._nodes[index]
                if node.op_type == "Shape":
                    shapes.append(index)
                if node.op_type != "Shape" or into_shapes:
                    todo.extend(inputs_of(node))
        return Walk(inside, open_ends, shapes)

    def _leaf(self, name: str, open_sizes: Sequence[str]) -> Given:
        """A shape as an input of the trial; open sizes are taken from `open_sizes` in turn."""
        node = self._nodes[self._makers[name]]
        known: tuple[int | str | None, ...] = self.shapes.get(node.input[0]) or (None,)
        names = chain(open_sizes, repeat(open_sizes[-1]))
        if known[-1] is None and len(known) > 2:
            known = (*known[:-1], "head_dim" if len(known) == 4 else "q_heads*head_dim")
        sizes = tuple(next(names) if size is None else size for size in known)
        bounds = {a.name: a.i for a in node.attribute}
        sizes = sizes[bounds.get("start", 0) : bounds.get("end", len(sizes))]
        return Given(name, TensorProto.INT64, (len(sizes),), sizes)

    def _unquantized(self, node: NodeProto, site: Site) -> NodeProto:
        """A DequantizeLinear that the site leaves out hands on what was quantised."""
        if node.op_type != "DequantizeLinear" or node.output[0] not in site.unquantized:
            return node
        quantize = self._nodes[self._makers[node.input[0]]]
        return helper.make_node("Identity", [quantize.input[0]], list(node.output))

    def _trial(self, site: Site, original: list[NodeProto], drawn: dict[str, int]) -> ModelProto:
        """A model that computes the site both ways; `_wanted` names its outputs in pairs."""
        read = {name for node in original for name in inputs_of(node)}
        read |= {name for node in site.before for name in node.input}
        stored = [self._stored[name] for name in sorted(read & self._stored.keys() - drawn.keys())]
        stored = [inlined(tensor, self.model.folder) for tensor in stored]
        opset, proto = self.place.opset, self.model.proto
        builder = Builder(opset, "sparsify_trial/", {*self._makers, *drawn})
        uses = uses_of(site, Choice())
        also = tuple((made, f"{_TRIAL}_{i}") for i, (made, _) in enumerate(site.also))
        Emitter(builder, self.operator, uses).site(replace(site, also=also), Choice(), _TRIAL)
        outputs = [_open_value(name, site.output_type) for name in _wanted(site)[:2]]
        outputs += [_open_value(name, site.element_type) for name in _wanted(site)[2:]]
        inputs = [_open_value(name, kind) for name, kind in drawn.items()]
        graph = helper.make_graph([*original, *builder.nodes], "trial", inputs, outputs, stored)
        imports = {o.domain: o.version for o in [*proto.opset_import, *self._imports()]}
        imports |= {"": opset} | {o.domain: o.version for o in imports_of(builder.calls)}
        imports.pop("ai.onnx", None)
        return helper.make_model(
            graph,
            functions=[*proto.functions, *bodies_of(builder.calls, opset, site.element_type)],
            opset_imports=[helper.make_opsetid(*pair) for pair in imports.items()],
            ir_version=max(proto.ir_version, 8),
        )

    def _imports(self) -> list[Any]:
        outermost = self.place.layers[0]
        return [] if isinstance(outermost, GraphProto) else list(outermost.opset_import)


def _wanted(site: Site) -> list[str]:
    """Pairs of outputs to compare: the original's, and ours."""
    pairs = [site.output, _TRIAL]
    for index, (_, name) in enumerate(site.also):
        pairs += [name, f"{_TRIAL}_{index}"]
    return pairs


def _sizes_of(site: Site) -> tuple[object, ...]:
    """What `trial_sizes` and `feeds` read of a site, beyond names."""
    masks = [(m.kind, m.sizes, m.tiled, m.operand.steps) for m in site.masks]
    given = [(g.sizes, g.values) for g in site.given]
    operands = [operand.steps for operand in (site.query, site.key, site.value)]
    sizes = (site.q_heads, site.kv_heads, site.group, site.q_length, site.k_length)
    return (*sizes, site.head_dim, site.value_dim, site.batch, *operands, *masks, *given)


def _form(trial: ModelProto) -> bytes:
    """A trial with its tensors numbered and its nodes unnamed: the same for the same form."""
    numbers: dict[str, str] = {"": ""}

    def renamed(names: Any) -> None:
        names[:] = [numbers.setdefault(name, str(len(numbers))) for name in names]

    copy = ModelProto()
    copy.CopyFrom(trial)
    del copy.functions[:]  # the same for all sites of a model
    graph = copy.graph
    for value in [*graph.input, *graph.initializer]:
        value.name = numbers.setdefault(value.name, str(len(numbers)))
    if any(bodies(node) for node in graph.node):
        return bytes(trial.SerializeToString(deterministic=True))
    for node in graph.node:
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        renamed(node.input)
        renamed(node.output)
    for value in graph.output:
        value.name = numbers[value.name]
    return bytes(copy.SerializeToString(deterministic=True))


def _verdict(site: Site, trial: ModelProto) -> Verdict:
    """The verdict on the first form of the trial that ONNX Runtime can run."""
    found = _tried(site, trial)
    reason = str(found)
    if isinstance(found, SparsifyError) and site.element_type in HALVES:
        trial = in_float(trial)
        found = _tried(site, trial)
    if isinstance(found, SparsifyError):
        defined = _defined(site, trial)
        found = found if defined is None else defined  # an error of 0.0 is a verdict too
    return reason if isinstance(found, SparsifyError) else found


def _defined(site: Site, trial: ModelProto) -> Verdict | SparsifyError | None:
    """The verdict on a trial whose operators are written out by their definitions, if they can."""
    try:
        first = feeds(site, next(iter(trial_sizes(site))), np.random.default_rng(0))
    except SparsifyError:  # the sizes do not fit, which the trial itself has said before
        return None
    defined = written_out(trial, fitting(first, trial))
    return None if defined is None else _tried(site, defined)


def _tried(site: Site, trial: ModelProto) -> Verdict | SparsifyError:
    """The verdict on a trial, or the error that there is none because it does not run."""
    data = trial.SerializeToString()
    try:  # as it is written: optimising takes longer than running, and may fail on its own
        session = runtime.session(data, library=False, threads=1, optimize=False)
    except SparsifyError as error:  # nothing to compare with, where the original does not run
        return error
    failure: SparsifyError | None = None
    for sizes in trial_sizes(site):
        if sizes.scores > _ELEMENTS:
            return "it is fixed at a size too large for a trial"
        try:
            drawn = fitting(feeds(site, sizes, np.random.default_rng(0)), trial)
            results = runtime.run(session, drawn)
        except SparsifyError as error:  # these sizes do not fit the graph; others may
            failure = failure or error
            continue
        names = _wanted(site)
        pairs = zip(names[::2], names[1::2], strict=True)
        return _worst([_difference(site, results[a], results[b]) for a, b in pairs])
    return failure or SparsifyError("no trial size fits")


def _worst(verdicts: list[Verdict]) -> Verdict:
    objections = [verdict for verdict in verdicts if isinstance(verdict, str)]
    return objections[0] if objections else max(float(verdict) for verdict in verdicts)


def _open_value(name: str, element_type: int) -> Any:
    return helper.make_tensor_value_info(name, element_type, None)


def _difference(site: Site, original: npt.NDArray[Any], ours: npt.NDArray[Any]) -> Verdict:
    if original.shape != ours.shape:
        return f"its output is {list(original.shape)}, the operator's {list(ours.shape)}"
    wanted, got = original.astype(np.float64), ours.astype(np.float64)
    if not np.isfinite(wanted).all():
        return "its nodes give non-finite numbers on a trial input"
    error = float(np.abs(wanted - got).max() / max(np.abs(wanted).max(), 1e-30))
    if not error <= TOLERANCE[site.element_type]:
        return f"its nodes and the normal form differ by {error:.1e} on a trial input"
    return error
