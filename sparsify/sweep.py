"""Takes out of a changed model what only the replaced nodes had kept alive, in all its graphs."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from onnx import GraphProto, ModelProto

from sparsify.places import Place, places
from sparsify.uses import AnyGraph, made_in, outputs_of

Tensor = tuple[str, str]
"""The name of the place that a tensor belongs to, and its own."""


@dataclass(frozen=True)
class Census:
    """The tensors of a model by place, and how often each is read."""

    found: dict[str, Place]
    made: dict[str, set[str]]
    readers: Counter[Tensor] = field(default_factory=Counter)

    def owner(self, place: Place, name: str) -> Tensor:
        """The tensor that a name stands for where `place` reads it."""
        around = (layer.name for layer in reversed(place.chain) if name in self.made[layer.name])
        return next(around, place.name), name


def census(model: ModelProto) -> Census:
    """Count every use; leaving a graph, or scaling another tensor, is one."""
    found = {place.name: place for place in places(model)}
    result = Census(found, {name: made_in(place.graph) for name, place in found.items()})
    for place in found.values():
        names = [name for node in place.graph.node for name in node.input]
        result.readers.update(
            result.owner(place, name) for name in (*names, *_kept_by(place.graph)) if name
        )
    return result


def sweep(model: ModelProto, before: Census) -> None:
    """Drop the nodes, initializers and value_info that were of use in `before` and are not now."""
    now = census(model)
    _Sweep(now).run([tensor for tensor in before.readers if not now.readers[tensor]])
    for name, place in now.found.items():
        if isinstance(place.graph, GraphProto):
            _drop_initializers(name, place.graph, before, now)
        gone = before.made[name] - made_in(place.graph)
        kept = [info for info in place.graph.value_info if info.name not in gone]
        if len(kept) != len(place.graph.value_info):
            del place.graph.value_info[:]
            place.graph.value_info.extend(kept)


@dataclass(frozen=True)
class _Sweep:
    """Nodes die when nobody reads what they make; what they read loses a reader each."""

    now: Census
    dead: set[tuple[str, int]] = field(default_factory=set)
    suspects: list[Tensor] = field(default_factory=list)
    inner: dict[tuple[str, int], list[Place]] = field(default_factory=lambda: defaultdict(list))

    def run(self, suspects: list[Tensor]) -> None:
        makers = {}
        for place in self.now.found.values():
            if place.outer is not None:
                self.inner[place.outer.name, place.holder].append(place)
            for index, node in enumerate(place.graph.node):
                makers.update({(place.name, name): index for name in node.output})
        self.suspects.extend(suspects)
        while self.suspects:
            suspect = self.suspects.pop()
            if suspect in makers:
                self._judge(self.now.found[suspect[0]], makers[suspect])
        self._bury()

    def _judge(self, place: Place, index: int) -> None:
        made = place.graph.node[index].output
        read = any(self.now.readers[place.name, name] for name in made)
        if not read and (place.name, index) not in self.dead:
            self._kill(place, index)

    def _kill(self, place: Place, index: int) -> None:
        self.dead.add((place.name, index))
        self._release(place, place.graph.node[index].input)
        for body in self.inner.get((place.name, index), ()):
            for inside in range(len(body.graph.node)):
                if (body.name, inside) not in self.dead:
                    self._kill(body, inside)
            self._release(body, _kept_by(body.graph))

    def _release(self, place: Place, names: Iterable[str]) -> None:
        for name in names:
            tensor = self.now.owner(place, name)
            self.now.readers[tensor] -= 1
            if not self.now.readers[tensor]:
                self.suspects.append(tensor)

    def _bury(self) -> None:
        """Delete from the innermost graphs outwards, so that no index and no graph moves."""
        for place in reversed(self.now.found.values()):
            for index in reversed(range(len(place.graph.node))):
                if (place.name, index) in self.dead:
                    del place.graph.node[index]


def _kept_by(graph: AnyGraph) -> list[str]:
    """The tensors that a graph itself keeps alive."""
    names = sorted(outputs_of(graph))
    if isinstance(graph, GraphProto):
        for annotation in graph.quantization_annotation:
            names += [entry.value for entry in annotation.quant_parameter_tensor_names]
    return names


def _drop_initializers(place: str, graph: GraphProto, before: Census, now: Census) -> None:
    declared = {value.name for value in graph.input}
    for index in reversed(range(len(graph.initializer))):
        name = graph.initializer[index].name
        was_read, is_read = before.readers[place, name], now.readers[place, name]
        if was_read and not is_read and name not in declared:
            del graph.initializer[index]
