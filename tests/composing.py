"""Writes graphs of several attentions and look-alikes from random choices of spelling."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from graphs import BOOL, FLOAT, LOWEST, Array, Value, Writer, build, rank
from onnx import ModelProto, helper

HEADS, DIM, GROUP = 4, 16, 2

PRODUCTS = ("matmul", "fused", "einsum", "einsum_bshd", "folded", "turned", "groups", "repeated")
SCALES = ("after", "on_query", "div_after", "split", "none")
VIEWS = (4, 3, 5)
MASKS = (
    "add",
    "add_heads",
    "add_keys",
    "subtract",
    "keep",
    "drop",
    "causal",
    "causal_bias",
    "aligned_right",
    "multiply",
    "number",
    "factor",
    "far_clamp",
    "largest",
    "idle",
    "softcap",
    "second_product",
)
DECOYS = ("near_clamp", "mixed_heads", "key_factor", "rectified", "squared")
AFTER = ("none", "guard", "idle", "zeroed", "zeroed_otherwise", "mixed_heads", "output")
VALUES = ("matmul", "fused", "einsum", "einsum_turned", "transposed", "folded", "on_both_sides")
FILLS = (float("-inf"), LOWEST, -1e9, -1e4)


@dataclass(frozen=True)
class Spelling:
    """How one attention is written; `steps` are (what, the rank of the view it happens at)."""

    product: str = "matmul"
    scale: str = "after"
    steps: tuple[tuple[str, int], ...] = ()
    fill: float = float("-inf")
    after: str = "none"
    values: str = "matmul"
    sinks: bool = False

    @property
    def plain(self) -> bool:
        """Whether nothing is in it that only a look-alike has."""
        return (
            not any(what in DECOYS for what, _ in self.steps)
            and self.after not in ("zeroed_otherwise", "mixed_heads", "output")
            and self.values != "on_both_sides"
        )


def model_of(spellings: Sequence[Spelling], opset: int) -> ModelProto:
    """One graph; attention `i` makes the output `y{i}` from the inputs that all share."""
    w = Writer()
    shared = _Shared(w, opset)
    outputs: list[Value] = []
    for index, spelling in enumerate(spellings):
        block = _Block(shared, spelling)
        w.op("Identity", block.result(), name=f"y{index}")
        outputs.append((f"y{index}:0", FLOAT, rank(4)))
        outputs += [(name, FLOAT, rank(4)) for name in block.also]
    model = build(w.nodes, INPUTS, outputs, w.stored, opset)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


INPUTS: tuple[Value, ...] = (
    ("q", FLOAT, ["b", HEADS, "s", DIM]),
    ("k", FLOAT, ["b", HEADS, "t", DIM]),
    ("v", FLOAT, ["b", HEADS, "t", DIM]),
    ("few_k", FLOAT, ["b", GROUP, "t", DIM]),
    ("few_v", FLOAT, ["b", GROUP, "t", DIM]),
    ("bias", FLOAT, ["b", 1, "s", "t"]),
    ("heads_bias", FLOAT, [1, HEADS, "s", "t"]),
    ("keys_bias", FLOAT, ["b", 1, 1, "t"]),
    ("keep", BOOL, ["b", 1, "s", "t"]),
    ("other", BOOL, ["b", 1, "s", "t"]),
    ("ones", FLOAT, ["b", 1, "s", "t"]),
    ("factor", FLOAT, [HEADS, 1, 1]),
    ("key_factor", FLOAT, ["b", 1, 1, "t"]),
    ("sink", FLOAT, [HEADS]),
    ("q2", FLOAT, ["b", HEADS, "s", 8]),
    ("k2", FLOAT, ["b", HEADS, 8, "t"]),
)


def feeds_of(batch: int, s: int, t: int) -> dict[str, Array]:
    """Inputs for every graph; each mask leaves each row its first key."""
    rng = np.random.default_rng(s)
    named = {"b": batch, "s": s, "t": t}
    feeds: dict[str, Array] = {}
    for name, _, shape in INPUTS:
        sizes = [named.get(str(d)) or int(d) for d in shape]
        if name in ("keep", "other", "ones"):
            mask = rng.random(sizes) < 0.7
            mask[..., 0] = True
            feeds[name] = mask.astype(np.float32 if name == "ones" else np.bool_)
        elif name == "factor":
            feeds[name] = rng.uniform(0.5, 1.5, sizes).astype(np.float32)
        else:
            feeds[name] = rng.standard_normal(sizes).astype(np.float32)
    return feeds


class _Shared:
    """Numbers and shapes that all attentions of one graph read."""

    def __init__(self, writer: Writer, opset: int) -> None:
        self.w, self.opset = writer, opset
        query, key = writer.op("Shape", "q"), writer.op("Shape", "k")
        two = self.ints(2)
        self.batch = writer.op("Gather", query, self.ints(0))
        self.s, self.t = writer.op("Gather", query, two), writer.op("Gather", key, two)

    def ints(self, *values: int) -> str:
        return self.w.store(values, np.int64)

    def number(self, value: float) -> str:
        return self.w.store(value, np.float32)

    def reshaped(self, name: str, *sizes: int | str) -> str:
        parts = [self.ints(size) if isinstance(size, int) else size for size in sizes]
        return self.w.op("Reshape", name, self.w.op("Concat", *parts, axis=0))

    def swapped(self, name: str, rank: int = 4) -> str:
        return self.w.op("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])


class _Block:
    """Writes one attention; `rank` is that of the view at which the scores stand."""

    def __init__(self, shared: _Shared, spelling: Spelling) -> None:
        self.shared, self.w, self.spelling = shared, shared.w, spelling
        self.rank = 4
        self.also: list[str] = []

    def result(self) -> str:
        scores = self._scaled(self._product())
        for what, view in self.spelling.steps:
            scores = self._step(self._viewed(scores, view), what)
        if self.spelling.sinks:
            scores = self._with_sinks(self._viewed(scores, 4))
        weights = self.w.op("Softmax", scores, axis=-1)
        if self.spelling.sinks:
            ends = [self.shared.ints(number) for number in (0, -1, 3)]
            weights = self.w.op("Slice", weights, *ends)
        return self._values(self._after(weights))

    # The product -------------------------------------------------------------------------------

    def _product(self) -> str:
        w, shared, query, key = self.w, self.shared, "q", "k"
        half = shared.number(0.5)
        if self.spelling.scale in ("on_query", "split"):
            query = w.op("Mul", "q", half)
        if self.spelling.scale == "split":
            key = w.op("Mul", half, "k")
        product = self.spelling.product
        if product == "fused":
            return w.op("FusedMatMul", query, key, domain="com.microsoft", alpha=0.5, transB=1)
        if product == "einsum":
            return w.op("Einsum", query, key, equation="bhsd,bhtd->bhst")
        if product == "einsum_bshd":
            turned = [w.op("Transpose", x, perm=[0, 2, 1, 3]) for x in (query, key)]
            return w.op("Einsum", *turned, equation="bshd,bthd->bhst")
        if product == "turned":
            return shared.swapped(w.op("MatMul", key, shared.swapped(query)))
        if product == "folded":
            query, key = self._folded(query, shared.s), self._folded(key, shared.t)
            self.rank = 3
            return w.op("MatMul", query, shared.swapped(key, 3))
        if product == "groups":
            query = shared.reshaped(query, shared.batch, GROUP, 2, shared.s, DIM)
            key = shared.swapped(w.op("Unsqueeze", "few_k", shared.ints(2)), 5)
            self.rank = 5
            return w.op("MatMul", query, key)
        if product == "repeated":
            key = self._repeated("few_k")
        return w.op("MatMul", query, shared.swapped(key))

    def _folded(self, name: str, length: str) -> str:
        return self.shared.reshaped(name, -1, length, DIM)

    def _repeated(self, name: str) -> str:
        shared = self.shared
        wide = self.w.op("Unsqueeze", name, shared.ints(2))
        wide = self.w.op("Expand", wide, shared.ints(1, 1, HEADS // GROUP, 1, 1))
        return shared.reshaped(wide, shared.batch, HEADS, shared.t, DIM)

    def _scaled(self, scores: str) -> str:
        number = self.shared.number
        if self.spelling.scale == "after":
            return self.w.op("Mul", scores, number(0.25))
        if self.spelling.scale == "div_after":
            return self.w.op("Div", scores, number(4.0))
        return scores

    # Views -------------------------------------------------------------------------------------

    def _viewed(self, scores: str, rank: int) -> str:
        if rank == self.rank:
            return scores
        self.rank = rank
        shared = self.shared
        lead: dict[int, tuple[int | str, ...]] = {3: (-1,), 4: (shared.batch, HEADS)}
        lead[5] = (shared.batch, GROUP, 2)
        return shared.reshaped(scores, *lead[rank], shared.s, shared.t)

    def _mask(self, name: str) -> str:
        """A mask `[b or 1, h or 1, s or 1, t]` for the view at which the scores stand."""
        w, shared = self.w, self.shared
        if self.rank == 4:
            return name
        if name == "heads_bias":
            if self.rank == 5:
                return shared.reshaped(name, 1, GROUP, 2, shared.s, shared.t)
            folds = w.op("Concat", shared.batch, shared.ints(1), shared.ints(1, 1), axis=0)
            return shared.reshaped(w.op("Expand", name, folds), -1, shared.s, shared.t)
        if self.rank == 5:
            return w.op("Unsqueeze", name, shared.ints(2))
        rows = shared.ints(1) if name in ("keys_bias", "key_factor") else shared.s
        every = w.op("Concat", shared.batch, shared.ints(HEADS, 1, 1), axis=0)
        return shared.reshaped(w.op("Expand", name, every), -1, rows, shared.t)

    # Between product and Softmax ---------------------------------------------------------------

    def _step(self, scores: str, what: str) -> str:
        w, shared = self.w, self.shared
        number = shared.number
        if what in ("add", "add_heads", "add_keys"):
            bias = {"add": "bias", "add_heads": "heads_bias", "add_keys": "keys_bias"}[what]
            return w.op("Add", scores, self._mask(bias))
        if what == "subtract":
            return w.op("Sub", scores, self._mask("bias"))
        if what == "keep":
            return w.op("Where", self._mask("keep"), scores, number(self.spelling.fill))
        if what == "drop":
            drop = self._mask(w.op("Not", "keep"))
            return w.op("Where", drop, number(self.spelling.fill), scores)
        if what in ("causal", "causal_bias", "aligned_right"):
            return self._causal(scores, what)
        if what == "multiply":
            ones = self._mask("ones")
            away = w.op("Mul", w.op("Sub", number(1.0), ones), number(1e4))
            return w.op("Sub", w.op("Mul", scores, ones), away)
        if what == "number":
            return w.op("Add", scores, number(1.5))
        if what == "factor":
            return w.op("Mul", scores, self._factor())
        if what == "far_clamp":
            return w.op("Max", scores, number(LOWEST))
        if what == "largest":
            return self._shifted(scores)
        if what == "idle":
            return w.op("Identity", w.op("Cast", scores, to=FLOAT))
        if what == "softcap":
            bent = w.op("Tanh", w.op("Div", scores, number(3.0)))
            return w.op("Mul", bent, number(3.0))
        if what == "second_product":
            return w.op("Add", self._full(w.op("MatMul", "q2", "k2")), scores)
        return self._decoy(scores, what)

    def _causal(self, scores: str, what: str) -> str:
        """Queries see the keys up to their own place; "aligned_right": up to `t` places later."""
        w, shared, fill = self.w, self.shared, self.shared.number(self.spelling.fill)
        zero, one = w.store(0, np.int64), w.store(1, np.int64)
        s, t = (w.op("Squeeze", size, shared.ints(0)) for size in (shared.s, shared.t))
        rows, columns = (w.op("Range", zero, size, one) for size in (s, t))
        if what == "aligned_right":
            rows = w.op("Add", rows, t)
            columns = w.op("Add", columns, s)
        seen = w.op("LessOrEqual", columns, w.op("Unsqueeze", rows, shared.ints(1)))
        seen = self._mask(w.op("Unsqueeze", seen, shared.ints(0, 1)))
        if what == "causal_bias":
            return w.op("Add", scores, w.op("Where", seen, shared.number(0.0), fill))
        return w.op("Where", seen, scores, fill)

    def _decoy(self, scores: str, what: str) -> str:
        w = self.w
        if what == "near_clamp":
            return w.op("Max", scores, self.shared.number(-0.5))
        if what == "mixed_heads":
            return self._mixed(self._viewed(scores, 4))
        if what == "key_factor":
            return w.op("Mul", scores, self._mask("key_factor"))
        if what == "rectified":
            return w.op("Add", scores, w.op("Relu", scores))
        return w.op("Mul", scores, scores)

    def _factor(self) -> str:
        shared = self.shared
        if self.rank == 4:
            return "factor"
        if self.rank == 5:
            return shared.reshaped("factor", GROUP, 2, 1, 1)
        every = self.w.op("Concat", shared.batch, shared.ints(1, 1, 1), axis=0)
        return shared.reshaped(self.w.op("Expand", "factor", every), -1, 1, 1)

    def _full(self, scores: str) -> str:
        rank, self.rank = self.rank, 4
        return self._viewed(scores, rank)

    def _shifted(self, scores: str) -> str:
        w, shared = self.w, self.shared
        if shared.opset < 18:
            return w.op("Sub", scores, w.op("ReduceMax", scores, axes=[-1]))
        return w.op("Sub", scores, w.op("ReduceMax", scores, shared.ints(-1)))

    def _mixed(self, scores: str) -> str:
        w = self.w
        mix = w.store(np.eye(HEADS)[[1, 0, 3, 2]] + 0.1, np.float32)
        last = w.op("MatMul", w.op("Transpose", scores, perm=[0, 2, 3, 1]), mix)
        return w.op("Transpose", last, perm=[0, 3, 1, 2])

    def _with_sinks(self, scores: str) -> str:
        w, shared = self.w, self.shared
        column = w.op("Reshape", "sink", shared.ints(1, HEADS, 1, 1))
        sizes = (shared.batch, shared.ints(HEADS), shared.s, shared.ints(1))
        column = w.op("Expand", column, w.op("Concat", *sizes, axis=0))
        return self._shifted(w.op("Concat", scores, column, axis=-1))

    # After the Softmax -------------------------------------------------------------------------

    def _after(self, weights: str) -> str:
        w, after, zero = self.w, self.spelling.after, self.shared.number(0.0)
        if after == "guard":
            return w.op("Where", w.op("IsNaN", weights), zero, weights)
        if after == "idle":
            return w.op("Dropout", w.op("Identity", weights))
        if after in ("zeroed", "zeroed_otherwise"):
            kept = self._mask("keep" if after == "zeroed" else "other")
            return w.op("Where", kept, weights, zero)
        if after == "mixed_heads":
            return self._mixed(self._viewed(weights, 4))
        if after == "output":
            self.also.append(w.op("Identity", weights))
        return weights

    def _values(self, weights: str) -> str:
        w, shared, how = self.w, self.shared, self.spelling.values
        few = self.spelling.product in ("groups", "repeated")
        if self.spelling.product == "groups" and how == "matmul":
            value = w.op("Unsqueeze", "few_v", shared.ints(2))
            result = w.op("MatMul", self._viewed(weights, 5), value)
            return shared.reshaped(result, shared.batch, HEADS, shared.s, DIM)
        value = self._repeated("few_v") if few else "v"
        weights = self._viewed(weights, 4)
        if how == "fused":
            return w.op("FusedMatMul", weights, value, domain="com.microsoft")
        if how == "einsum":
            return w.op("Einsum", weights, value, equation="bhst,bhtd->bhsd")
        if how == "einsum_turned":
            return w.op("Einsum", value, weights, equation="bhtd,bhst->bshd")
        if how == "transposed":
            turned = shared.swapped(value), shared.swapped(weights)
            return shared.swapped(w.op("MatMul", *turned))
        if how == "folded":
            weights = self._viewed(weights, 3)
            flat = w.op("MatMul", weights, self._folded(value, shared.t))
            return shared.reshaped(flat, shared.batch, HEADS, shared.s, DIM)
        if how == "on_both_sides":
            left = w.op("MatMul", weights, value)
            return w.op("MatMul", shared.swapped(weights), left)
        return w.op("MatMul", weights, value)
