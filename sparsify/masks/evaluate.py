"""Evaluates tensors of a graph at chosen sizes of its inputs, without its weights or its data.

Shapes are inferred for inputs of concrete sizes; Shape nodes are then constants, and what hangs on
nothing but them and small stored tensors runs in ONNX Runtime.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from sparsify import runtime
from sparsify.errors import SparsifyError
from sparsify.masks.lengths import Dims
from sparsify.masks.source import Array, Source
from sparsify.uses import bodies

_ELEMENTS = 1 << 27
"""Elements of the largest tensor that is computed."""

_ROUNDS = 8
"""Rounds of inference; each settles shapes that hang on those of the round before."""

_DECIDING = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}
"""The inputs of operators whose values decide the shape of the result."""

_RANDOM = (
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)


@dataclass(frozen=True)
class Shapes:
    """The element types of tensors and their dimensions, where inference can tell."""

    types: Mapping[str, int]
    dims: Mapping[str, tuple[int, ...]]

    def count(self, name: str) -> float:
        """The number of elements of a tensor, infinite where it is not known."""
        return math.prod(self.dims[name]) if name in self.dims else math.inf

    def with_(self, other: "Shapes") -> "Shapes":
        """What is known from either."""
        return Shapes({**self.types, **other.types}, {**self.dims, **other.dims})


_NOTHING = Shapes({}, {})


@dataclass(frozen=True)
class Inferred:
    """Shapes at one choice of sizes, and the tensors above which they were inferred."""

    covered: frozenset[str]
    shapes: Shapes


@dataclass(frozen=True)
class Cut:
    """Nodes that compute tensors from constants alone; `fixed` are their constants."""

    nodes: tuple[NodeProto, ...]
    fixed: Mapping[str, Array]
    given: frozenset[str]


@dataclass(frozen=True)
class Evaluator:
    """Evaluates tensors of one graph; shapes that were inferred are kept."""

    source: Source
    _shapes: dict[object, Inferred] = field(default_factory=dict)
    _arrays: dict[str, Array | None] = field(default_factory=dict)

    def shapes(self, names: Iterable[str], dims: Dims, strict: bool = False) -> Shapes:
        """The shapes of some tensors and of all that leads to them.

        With `strict` there are none where two sizes contradict each other.
        """
        wanted = frozenset(names)
        key = (tuple(sorted(dims.items())), strict)
        before = self._shapes.get(key)
        if before is not None and wanted <= before.covered:
            return before.shapes
        # a second question about the same sizes will not be the last: layers ask one by one
        everything = wanted if before is None else frozenset(self.source.makers) | wanted
        self._shapes[key] = Inferred(everything, self._inferred(everything, dims, strict))
        return self._shapes[key].shapes

    def _inferred(self, names: frozenset[str], dims: Dims, strict: bool) -> Shapes:
        """Infer, compute the sizes that became known, and infer again with those."""
        nodes = self.source.upstream(names)
        settled: dict[str, Array] = {}
        shapes = _NOTHING
        for _ in range(_ROUNDS):
            found = self._once(names, nodes, settled, dims, strict)
            if found is _NOTHING:
                return _NOTHING if strict else shapes
            shapes = shapes.with_(found)
            new = self._settled(nodes, shapes, settled)
            if not new:
                break
            settled |= new
        return shapes

    def _once(
        self,
        names: frozenset[str],
        nodes: list[NodeProto],
        settled: Mapping[str, Array],
        dims: Dims,
        strict: bool,
    ) -> Shapes:
        source = self.source
        nodes = [node for node in nodes if node.output[0] not in settled]
        read = source.read(nodes) | names
        inputs = [
            _sized(value, dims.get(name)) for name, value in source.inputs.items() if name in read
        ]
        stored = [_bare(source.stored[name]) for name in sorted(read & source.stored.keys())]
        stored += [numpy_helper.from_array(value, name) for name, value in settled.items()]
        graph = helper.make_graph(nodes, "shapes", inputs, [], stored)
        model = _model(source, graph)
        try:
            model = onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=strict)
        except (onnx.shape_inference.InferenceError, RuntimeError):
            return _NOTHING
        types, sizes = {}, {}
        for tensor in stored:
            types[tensor.name], sizes[tensor.name] = tensor.data_type, tuple(tensor.dims)
        for value in [*model.graph.value_info, *model.graph.input]:
            tensor_type = value.type.tensor_type
            types[value.name] = tensor_type.elem_type
            known = all(dim.HasField("dim_value") for dim in tensor_type.shape.dim)
            if tensor_type.HasField("shape") and known:
                sizes[value.name] = tuple(dim.dim_value for dim in tensor_type.shape.dim)
        return Shapes(types, sizes)

    def _settled(
        self, nodes: list[NodeProto], shapes: Shapes, settled: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Values that decide shapes and that inference does not compute by itself."""
        wanted = dict.fromkeys(
            node.input[index]
            for node in nodes
            if node.output[0] not in shapes.dims
            for index in _DECIDING.get(node.op_type, ())
            if index < len(node.input) and node.input[index] in self.source.makers
        )
        ready = self._ready(nodes, shapes)
        names = [name for name in wanted if name in ready and name not in settled]
        whole = self.cut(names, shapes) if names else None
        found = None if whole is None else self.run(names, whole, shapes, {})
        return found or {}

    def _ready(self, nodes: list[NodeProto], shapes: Shapes) -> set[str]:
        """What hangs on nothing but constants and known shapes."""
        ready = {"", *self.source.stored}
        for node in nodes:
            known = node.op_type in ("Shape", "Size") and node.input[0] in shapes.dims
            if known or (ready.issuperset(self.source.reads(node)) and node.op_type not in _RANDOM):
                ready.update(node.output)
        return ready

    def cut(self, names: Iterable[str], shapes: Shapes, given: Iterable[str] = ()) -> Cut | None:
        """What computes tensors from constants and `given`; None where data of inputs is needed."""
        stops, fixed, stored = frozenset(given), dict[str, Array](), list[str]()
        seen, inside, todo = set[str](), set[int](), list(names)
        while todo:
            name = todo.pop()
            if not name or name in seen or name in stops:
                continue
            seen.add(name)
            node = self.source.maker(name)
            shape = None if node is None else self._shape(node, shapes)
            if shape is not None:
                fixed[name] = shape
            elif name in self.source.stored:
                stored.append(name)
            elif node is None or node.op_type in _RANDOM:
                return None
            else:
                inside.add(self.source.makers[name])
                todo.extend(self.source.reads(node))
        for name in stored:  # read only now that nothing else is in the way
            value = self._stored(name)
            if value is None:
                return None
            fixed[name] = value
        nodes = tuple(self.source.originals[index] for index in sorted(inside))
        return Cut(nodes, fixed, stops & (self.source.read(nodes) | set(names)))

    def _shape(self, node: NodeProto, shapes: Shapes) -> Array | None:
        if node.op_type not in ("Shape", "Size") or node.input[0] not in shapes.dims:
            return None
        dims = shapes.dims[node.input[0]]
        if node.op_type == "Size":
            return np.array(math.prod(dims), dtype=np.int64)
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        part = slice(attributes.get("start", 0), attributes.get("end", len(dims)))
        return np.array(dims[part], dtype=np.int64)

    def _stored(self, name: str) -> Array | None:
        if name not in self._arrays:
            tensor = self.source.stored.get(name)
            self._arrays[name] = None if tensor is None else self.source.array(tensor)
        return self._arrays[name]

    def run(
        self, names: Iterable[str], cut: Cut, shapes: Shapes, feeds: Mapping[str, Array]
    ) -> dict[str, Array] | None:
        """The values of tensors; None where ONNX Runtime cannot compute them."""
        wanted = list(dict.fromkeys(names))
        sizes = [shapes.dims.get(name, ()) for node in cut.nodes for name in node.output]
        if any(math.prod(size) > _ELEMENTS for size in sizes):
            return None
        found = {name: cut.fixed[name] for name in wanted if name in cut.fixed}
        found |= {name: feeds[name] for name in wanted if name in feeds}
        computed = [name for name in wanted if name not in found]
        if not computed:
            return found
        model = self._runnable(computed, cut, shapes, feeds)
        try:
            session = runtime.session(
                model.SerializeToString(), library=False, threads=1, optimize=False
            )
            return found | runtime.run(session, {name: feeds[name] for name in cut.given})
        except SparsifyError:
            return None

    def _runnable(
        self, names: list[str], cut: Cut, shapes: Shapes, feeds: Mapping[str, Array]
    ) -> ModelProto:
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(feeds[name].dtype), feeds[name].shape
            )
            for name in sorted(cut.given)
        ]
        outputs = [
            helper.make_tensor_value_info(name, shapes.types.get(name, 0), None) for name in names
        ]
        fixed = [numpy_helper.from_array(value, name) for name, value in cut.fixed.items()]
        graph = helper.make_graph(cut.nodes, "masks", inputs, outputs, fixed)
        return _model(self.source, graph)


def _sized(value: ValueInfoProto, dims: tuple[int, ...] | None) -> ValueInfoProto:
    """An input with its dimensions; as it is where not even their number is known."""
    if dims is None:
        return value
    return helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, dims)


def _bare(tensor: TensorProto) -> TensorProto:
    """A stored tensor; a large one without its values."""
    if math.prod(tensor.dims) <= 1024 and tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    bare = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    bare.data_location = TensorProto.EXTERNAL
    bare.external_data.add(key="location", value="weights-left-on-disk")
    return bare


def _model(source: Source, graph: onnx.GraphProto) -> ModelProto:
    used = {"" if node.domain == "ai.onnx" else node.domain for node in graph.node} | {""}
    imports = source.imports
    if any(bodies(node) for node in graph.node) or any(d not in ("",) for d in used):
        used |= imports.keys()
    return helper.make_model(
        graph,
        functions=source.functions if used - {""} else (),
        opset_imports=[helper.make_opsetid(d, imports[d]) for d in sorted(used) if d in imports],
        ir_version=8,
    )
