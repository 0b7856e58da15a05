"""Checks a site's normal form by numbers before anything may be planned on it.

The site's nodes, cut out between its operands and its output, and the operator's function body with
everything kept run side by side in ONNX Runtime on random inputs, with masks that really mask. A
matcher can be wrong; a rewrite must not be silently wrong.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from sparsify import runtime
from sparsify.builder import Builder
from sparsify.emit import Choice, Emitter, uses_of
from sparsify.errors import SparsifyError
from sparsify.graft import inputs_of, names_in
from sparsify.model import Model, inlined, overridable_names
from sparsify.plugins import Operator
from sparsify.site import Mask, Operand, Site

TOLERANCE: dict[int, float] = {
    TensorProto.FLOAT: 1e-4,
    TensorProto.FLOAT16: 2e-2,
    TensorProto.BFLOAT16: 1e-1,
}
"""Largest difference allowed, relative to the largest value of the output."""

_ELEMENTS = 1 << 26
"""Score elements of the largest trial; a site fixed at a larger size is not proved."""

_TRIAL = "sparsify_trial_output"


@dataclass(frozen=True)
class Sizes:
    """The dimensions of one trial."""

    batch: int
    q_heads: int
    kv_heads: int
    q_length: int
    k_length: int
    head_dim: int
    value_dim: int


@dataclass(frozen=True)
class Prover:
    """Proves sites of one model's main graph."""

    model: Model
    operator: Operator

    def objection(self, site: Site) -> str | None:
        """Why the site's normal form is not proved; None when it is."""
        contradiction = _mask_contradiction(site)
        if contradiction is not None:
            return contradiction
        boundary = {operand.tensor for operand in _boundary(site)}
        nodes, open_ends = self._cut(site.output, boundary)
        if open_ends:
            return f"its nodes also read {', '.join(sorted(open_ends)[:3])}, from outside the site"
        try:
            trial = self._trial(site, nodes)
        except SparsifyError as error:  # nothing to compare with, where the original does not run
            return str(error)
        reason = "no trial size fits"
        for sizes in _trial_sizes(site):
            if sizes.batch * sizes.q_heads * sizes.q_length * sizes.k_length > _ELEMENTS:
                return "it is fixed at a size too large for a trial"
            try:
                results = runtime.run(trial, _feeds(site, sizes, np.random.default_rng(0)))
            except SparsifyError as error:  # these sizes do not fit the graph; others may
                reason = str(error)
                continue
            return _difference(site, results[site.output], results[_TRIAL])
        return reason

    def _cut(self, output: str, boundary: set[str]) -> tuple[list[NodeProto], set[str]]:
        """The nodes between boundary and output, in order, and what else they would need."""
        graph = self.model.proto.graph
        makers = {name: index for index, node in enumerate(graph.node) for name in node.output}
        stored = {tensor.name for tensor in graph.initializer}
        stored -= overridable_names(self.model.proto)
        inside, open_ends, todo = set[int](), set[str](), [output]
        while todo:
            name = todo.pop()
            if name in boundary or name in stored:
                continue
            if name not in makers:
                open_ends.add(name)
            elif makers[name] not in inside:
                inside.add(makers[name])
                todo.extend(inputs_of(graph.node[makers[name]]))
        return [graph.node[index] for index in sorted(inside)], open_ends

    def _trial(self, site: Site, nodes: Iterable[NodeProto]) -> Any:
        """A session whose model computes the site both ways."""
        original = list(nodes)
        read = {name for node in original for name in inputs_of(node)}
        boundary = {operand.tensor for operand in _boundary(site)}
        proto, opset = self.model.proto, self.model.opset
        stored = [t for t in proto.graph.initializer if t.name in read - boundary]
        stored = [inlined(tensor, self.model.folder) for tensor in stored]
        builder = Builder(opset, "sparsify_trial/", names_in(proto.graph))
        uses = uses_of(site, Choice())
        Emitter(builder, self.operator, uses).site(site, Choice(), _TRIAL)
        outputs = [_open_value(name, site.element_type) for name in (site.output, _TRIAL)]
        graph = helper.make_graph(
            [*original, *builder.nodes], "trial", _inputs(site), outputs, stored
        )
        body = self.operator.function(opset, site.element_type, uses)
        trial = helper.make_model(
            graph,
            functions=[*proto.functions, body],
            opset_imports=[*proto.opset_import, helper.make_opsetid(self.operator.domain, 1)],
            ir_version=max(proto.ir_version, 8),
        )
        return runtime.session(trial.SerializeToString(), library=False, threads=1)


def _boundary(site: Site) -> list[Operand]:
    return [site.query, site.key, site.value, *(mask.operand for mask in site.masks)]


def _open_value(name: str, element_type: int) -> Any:
    return helper.make_tensor_value_info(name, element_type, None)


def _inputs(site: Site) -> list[Any]:
    types = {operand.tensor: site.element_type for operand in (site.query, site.key, site.value)}
    types |= {mask.operand.tensor: mask.element_type for mask in site.masks}
    return [_open_value(name, kind) for name, kind in types.items()]


def _mask_lengths(site: Site, axis: int) -> set[int]:
    """The lengths along one axis of the scores (-2 queries, -1 keys) that masks fix."""
    sizes = [mask.sizes[axis] for mask in site.masks if len(mask.sizes) >= -axis]
    return {size for size in sizes if size is not None and size != 1}


def _mask_contradiction(site: Site) -> str | None:
    for axis, word, known in ((-2, "queries", site.q_length), (-1, "keys", site.k_length)):
        lengths = _mask_lengths(site, axis) | ({known} if known is not None else set())
        if len(lengths) > 1:
            return f"masks and operands disagree on the number of {word}: {sorted(lengths)}"
    return None


def _trial_sizes(site: Site) -> Iterable[Sizes]:
    """Small sizes first, lengths apart so that a mix-up shows; then the sizes the graph fixes."""
    heads = site.q_heads or 2 * (site.kv_heads or 1)
    dim = site.head_dim or site.value_dim or 8
    folded = len(site.output_squeeze)  # batch, and heads too, that the graph does not have
    heads = 1 if folded > 1 else heads
    q_fixed, k_fixed = (next(iter(_mask_lengths(site, axis)), None) for axis in (-2, -1))
    for batch, q_length, k_length in (
        (2, 20, 24),
        (2, 24, 24),
        (1, 24, 24),
        (site.batch or 2, site.q_length or 24, site.k_length or site.q_length or 24),
    ):
        yield Sizes(
            1 if folded else batch,
            heads,
            site.kv_heads or heads,
            q_fixed or q_length,
            k_fixed or k_length,
            dim,
            site.value_dim or dim,
        )


def _feeds(site: Site, sizes: Sizes, rng: np.random.Generator) -> Mapping[str, npt.NDArray[Any]]:
    s = sizes
    shapes = {
        site.query: (s.batch, s.q_heads, s.q_length, s.head_dim),
        site.key: (s.batch, s.kv_heads, s.k_length, s.head_dim),
        site.value: (s.batch, s.kv_heads, s.k_length, s.value_dim),
    }
    feeds: dict[str, npt.NDArray[Any]] = {}
    for operand, shape in shapes.items():
        values = rng.standard_normal(shape).astype(np.float32)
        feeds[operand.tensor] = _as_type(_backwards(operand, values), site.element_type)
    for mask in site.masks:
        feeds[mask.operand.tensor] = _mask_values(mask, sizes, rng)
    return feeds


def _mask_values(mask: Mask, sizes: Sizes, rng: np.random.Generator) -> npt.NDArray[Any]:
    """A random mask of the rank the graph has; no row of scores is left without a key."""
    full = (sizes.batch, sizes.q_heads, sizes.q_length, sizes.k_length)
    rank = len(mask.sizes)
    shape = list(full[4 - rank :])
    for axis, size in enumerate(mask.sizes):
        if size == 1 or (size is None and rank == 4 and axis == 1):
            shape[axis] = 1
    masked = rng.random(shape) < 0.3
    masked[..., 0] = False
    if mask.kind != "add":
        return _backwards(mask.operand, masked if mask.kind == "drop" else ~masked)
    values = np.where(masked, -np.inf, rng.standard_normal(shape)).astype(np.float32)
    return _as_type(_backwards(mask.operand, values), mask.element_type)


def _backwards(operand: Operand, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The tensor of the graph that gives `values` once the operand's steps are taken."""
    if operand.unsqueeze:
        axes = tuple(axis for axis in operand.unsqueeze if axis < values.ndim)
        values = values.reshape(tuple(n for i, n in enumerate(values.shape) if i not in axes))
    if operand.perm:
        values = np.ascontiguousarray(values.transpose(np.argsort(operand.perm)))
    if operand.split_heads:
        values = values.reshape(*values.shape[:2], -1)
    return values


def _as_type(values: npt.NDArray[Any], element_type: int) -> npt.NDArray[Any]:
    return values.astype(helper.tensor_dtype_to_np_dtype(element_type))


def _difference(site: Site, original: npt.NDArray[Any], ours: npt.NDArray[Any]) -> str | None:
    if original.shape != ours.shape:
        return f"its output is {list(original.shape)}, the operator's {list(ours.shape)}"
    wanted, got = original.astype(np.float64), ours.astype(np.float64)
    if not np.isfinite(wanted).all():
        return "its nodes give non-finite numbers on a trial input"
    error = float(np.abs(wanted - got).max() / max(np.abs(wanted).max(), 1e-30))
    if not error <= TOLERANCE[site.element_type]:
        return f"its nodes and the normal form differ by {error:.1e} on a trial input"
    return None
