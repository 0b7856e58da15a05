"""What it costs to select blocks: the operators that predict and choose, beside dense attention."""

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import TensorProto, helper
from rich.progress import track

from benchmarks.document import Table, console, duration
from benchmarks.paired import bound, interleave, ratio, session
from benchmarks.problem import Problem, qkv, tokens
from benchmarks.rivals import ENTRIES
from sparsify import plugins
from sparsify.bodies import bodies_of, imports_of
from sparsify.builder import Builder

TITLE = "selecting blocks"
NOTE = """Information, without targets. From Q and K to `block_indices`, in blocks of 64 queries by
16 keys, through the kernels and through the bodies that a written file carries, which stock ONNX
Runtime runs; "fused" is dense `com.microsoft.MultiHeadAttention` of the same length. What a dynamic
pattern may gain is what it leaves out less the last column. D 64, 8 heads, float32."""

_OPSET = 17
_BLOCKS = {"q_block": 64, "k_block": 16}
_MEAN_KEYS = (1024, 2048, 4096)
_ROUNDED = (1024, 2048)
"""The body of QuantizedMass holds a score for every pair of tokens."""


@dataclass(frozen=True)
class Selector:
    """A prediction, and a choice by it."""

    mass: str
    choice: str

    def __str__(self) -> str:
        return f"{self.mass}, {self.choice}"

    def model(self, problem: Problem) -> bytes:
        """Write the model from Q and K to a selection."""
        builder = Builder(_OPSET, "")
        attributes = {**_BLOCKS, "scale": problem.dim**-0.5}
        predict = plugins.get("operators", self.mass)
        mass = builder.call(predict, {"Q": "Q", "K": "K"}, attributes)[0]
        given, shares = {"scores": mass}, {"tau": 0.9}
        if self.choice == "TopKBlocks":
            given["count"] = builder.ints(problem.keys // 16 // 10)
            shares = {}
        chosen = builder.call(plugins.get("operators", self.choice), given, shares)
        for name, result in zip(("ids", "count"), chosen, strict=True):
            builder.node("Identity", [result], outputs=[name])
        graph = helper.make_graph(
            builder.nodes,
            "selection",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in "QK"],
            [
                helper.make_tensor_value_info("ids", TensorProto.INT32, [None] * 4),
                helper.make_tensor_value_info("count", TensorProto.INT32, [None] * 3),
            ],
        )
        model = helper.make_model(
            graph,
            functions=bodies_of(builder.calls, _OPSET, TensorProto.FLOAT),
            opset_imports=[helper.make_opsetid("", _OPSET), *imports_of(builder.calls)],
            ir_version=8,
        )
        return bytes(model.SerializeToString())


def _cases() -> Iterator[tuple[int, Selector]]:
    for length in _MEAN_KEYS:
        for choice in ("TopKBlocks", "TopPBlocks"):
            yield length, Selector("MeanKeyMass", choice)
    for length in _ROUNDED:
        yield length, Selector("QuantizedMass", "TopPBlocks")


def table(pairs: int, threads: int) -> Table:
    """One row per length and selector."""
    columns = ("S", "selector", "kernels", "bodies", "kernels / bodies", "fused", "kernels / fused")
    cases = track(list(_cases()), "selectors", console=console, transient=True)
    return Table("", columns, tuple(_row(*case, pairs, threads) for case in cases))


def _row(length: int, selector: Selector, pairs: int, threads: int) -> tuple[str, ...]:
    problem = tokens(length)
    model, given = selector.model(problem), qkv(problem)
    feeds = {name: given[name] for name in "QK"}
    calls = {
        "kernels": bound(session(model, threads=threads), feeds),
        "bodies": bound(session(model, threads=threads, library=False), feeds),
        "fused": ENTRIES["fused"](problem).running(problem, threads).call,
    }
    times = interleave(calls, pairs)
    return (
        str(length),
        str(selector),
        duration(times["kernels"].median),
        duration(times["bodies"].median),
        str(ratio(times["kernels"], times["bodies"])),
        duration(times["fused"].median),
        str(ratio(times["kernels"], times["fused"])),
    )
