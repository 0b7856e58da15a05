"""The operators that select blocks: bodies and kernels against float64, and against each other."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from sparsify.bodies import bodies_of, imports_of
from sparsify.builder import Builder
from sparsify.plugins import Operator
from sparsify.testing.operator import session
from sparsify_ops.kernels import CPU
from sparsify_ops.mean_key_mass import MEAN_KEY_MASS
from sparsify_ops.quantized_mass import QUANTIZED_MASS
from sparsify_ops.top_blocks import TOP_K_BLOCKS, TOP_P_BLOCKS

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
needs_kernel = pytest.mark.skipif(
    CPU.unavailable() is not None, reason=CPU.unavailable() or "the native library is here"
)
quick = settings(max_examples=60, deadline=None, derandomize=True)
NEWEST = onnx.defs.onnx_opset_version()


def model_of(
    operator: Operator,
    inputs: Mapping[str, Array],
    attributes: Mapping[str, int | float],
    uses: frozenset[str] = frozenset(),
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
) -> ModelProto:
    """One node; float inputs named Q and K enter as `dtype`."""
    builder = Builder(opset, "made/")
    names = {
        name: builder.cast(name, dtype)
        if name in ("Q", "K") and dtype != TensorProto.FLOAT
        else name
        for name in inputs
    }
    results = builder.call(operator, names, attributes, uses)
    for name, result in zip(operator.outputs, results, strict=True):
        builder.node("Identity", [result], outputs=[name])
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
    masses = operator.outputs[0] == "mass"
    kind = TensorProto.FLOAT if masses else TensorProto.INT32
    graph = helper.make_graph(
        builder.nodes,
        "one",
        [helper.make_tensor_value_info(n, kinds[n], [None] * x.ndim) for n, x in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in operator.outputs],
    )
    return helper.make_model(
        graph,
        functions=bodies_of(builder.calls, opset, dtype),
        opset_imports=[helper.make_opsetid("", opset), *imports_of(builder.calls)],
        ir_version=8,
    )


def answers(model: ModelProto, inputs: Mapping[str, Array], *, kernel: bool) -> list[Array]:
    active = session(model, CPU.library() if kernel else None, threads=2)
    results: list[Array] = active.run(None, dict(inputs))
    return results


# Mass ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One call of an operator that predicts mass."""

    batch: int = 1
    kv_heads: int = 2
    group: int = 1
    q_len: int = 70
    k_len: int = 90
    dim: int = 16
    q_block: int = 16
    k_block: int = 5
    causal: bool = False
    offsets: tuple[int, ...] = ()
    seed: int = 0

    @property
    def uses(self) -> frozenset[str]:
        flags = {"causal": self.causal, "query_offset": self.offsets, "gqa": self.group != 1}
        return frozenset(name for name, wanted in flags.items() if wanted)

    @property
    def attributes(self) -> dict[str, int | float]:
        blocks = {"q_block": self.q_block, "k_block": self.k_block}
        return {**blocks, "scale": 0.3, "is_causal": int(self.causal)}

    def inputs(self) -> dict[str, Array]:
        random = np.random.default_rng(self.seed)
        heads = self.kv_heads * self.group
        query = random.standard_normal((self.batch, heads, self.q_len, self.dim))
        key = random.standard_normal((self.batch, self.kv_heads, self.k_len, self.dim)) + 1
        given: dict[str, Array] = {"Q": query.astype(np.float32), "K": key.astype(np.float32)}
        if self.offsets:
            given["query_offset"] = np.array(self.offsets, dtype=np.int64)
        return given

    def positions(self, batch: int) -> npt.NDArray[np.int64]:
        offset = self.offsets[batch % len(self.offsets)] if self.offsets else 0
        return np.maximum(np.arange(self.q_len) + offset, 0)


def softmax(logits: Doubles) -> Doubles:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def groups(x: Doubles, size: int, axis: int) -> Doubles:
    """Sums of `size` neighbours."""
    return np.asarray(np.add.reduceat(x, np.arange(0, x.shape[axis], size), axis=axis))


def heads_of(
    setting: Setting, inputs: Mapping[str, Array]
) -> Iterator[tuple[tuple[int, int], Any]]:
    for b, h in np.ndindex(setting.batch, setting.kv_heads * setting.group):
        query = inputs["Q"][b, h].astype(np.float64)
        yield (b, h), (query, inputs["K"][b, h // setting.group].astype(np.float64))


def blank(setting: Setting) -> Doubles:
    q_blocks, k_blocks = -(-setting.q_len // setting.q_block), -(-setting.k_len // setting.k_block)
    return np.zeros((setting.batch, setting.kv_heads * setting.group, q_blocks, k_blocks))


def mean_key_mass(setting: Setting, inputs: Mapping[str, Array]) -> list[Doubles]:
    result = blank(setting)
    starts = np.arange(0, setting.k_len, setting.k_block)
    sizes = np.diff(np.append(starts, setting.k_len))
    for at, (query, key) in heads_of(setting, inputs):
        means = groups(key, setting.k_block, 0) / sizes[:, None]
        logits = 0.3 * query @ means.T + np.log(sizes)
        if setting.causal:
            logits[starts > setting.positions(at[0])[:, None]] = -np.inf
        result[at] = groups(softmax(logits), setting.q_block, 0)
    return [result]


def rounded(x: Doubles, bits: int) -> Doubles:
    """In float32 up to the integer, as the contract has it."""
    levels = np.float32(2 ** (bits - 1) - 1)
    most = np.abs(x).max(axis=-1, keepdims=True).astype(np.float32)
    most = np.maximum(most, np.float32(1e-30))
    whole = np.rint(x.astype(np.float32) * (levels / most))
    return np.asarray(whole * (most / levels).astype(np.float64))


def quantized_mass(setting: Setting, inputs: Mapping[str, Array], bits: int) -> list[Doubles]:
    mass, spread = blank(setting), blank(setting)
    starts = np.arange(0, setting.k_len, setting.k_block)
    for at, (query, key) in heads_of(setting, inputs):
        centred = key.astype(np.float32) - key.mean(axis=0).astype(np.float32)
        logits = 0.3 * rounded(query, bits) @ rounded(centred, bits).T
        seen = np.broadcast_to(setting.k_len, setting.q_len)
        if setting.causal:
            logits[np.arange(setting.k_len) > setting.positions(at[0])[:, None]] = -np.inf
            seen = np.minimum(setting.positions(at[0]) + 1, setting.k_len)
        weights = softmax(logits)
        ends = np.append(starts[1:], setting.k_len)
        count = np.clip(np.minimum(seen[:, None], ends) - starts, 1, None)
        sums = groups(weights, setting.k_block, 1)
        rows = groups(weights**2, setting.k_block, 1) - sums**2 / count
        mass[at], spread[at] = (groups(x, setting.q_block, 0) for x in (sums, rows))
    return [mass, spread]


def agree(found: Sequence[Array], wanted: Sequence[Array], rows: int) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * rows)


wide = st.builds(
    Setting,
    batch=st.integers(1, 2),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    q_len=st.integers(1, 150),
    k_len=st.integers(1, 300),
    dim=st.sampled_from([1, 7, 16, 33]),
    q_block=st.sampled_from([1, 16, 40, 64, 128]),
    k_block=st.sampled_from([1, 3, 16, 64, 200]),
    causal=st.booleans(),
    offsets=st.just(()),
    seed=st.integers(0, 9),
)
placed = st.builds(
    Setting,
    batch=st.just(2),
    q_len=st.integers(1, 40),
    causal=st.just(True),
    offsets=st.one_of(st.tuples(st.integers(-60, 120)), st.tuples(*[st.integers(-60, 120)] * 2)),
)
BITS = st.sampled_from([2, 4, 8])


@quick
@given(st.one_of(wide, placed))
def test_body_of_mean_key_mass(setting: Setting) -> None:
    inputs = setting.inputs()
    model = model_of(MEAN_KEY_MASS, inputs, setting.attributes, setting.uses)
    wanted = mean_key_mass(setting, inputs)
    agree(answers(model, inputs, kernel=False), wanted, setting.q_block)


@quick
@given(st.one_of(wide, placed), BITS)
def test_body_of_quantized_mass(setting: Setting, bits: int) -> None:
    inputs = setting.inputs()
    attributes = {**setting.attributes, "bits": bits}
    model = model_of(QUANTIZED_MASS, inputs, attributes, setting.uses)
    wanted = quantized_mass(setting, inputs, bits)
    agree(answers(model, inputs, kernel=False), wanted, setting.q_block)


@needs_kernel
@quick
@given(st.one_of(wide, placed))
def test_kernel_of_mean_key_mass(setting: Setting) -> None:
    inputs = setting.inputs()
    model = model_of(MEAN_KEY_MASS, inputs, setting.attributes, setting.uses)
    wanted = mean_key_mass(setting, inputs)
    agree(answers(model, inputs, kernel=True), wanted, setting.q_block)


@needs_kernel
@quick
@given(st.one_of(wide, placed), BITS)
def test_kernel_of_quantized_mass(setting: Setting, bits: int) -> None:
    inputs = setting.inputs()
    attributes = {**setting.attributes, "bits": bits}
    model = model_of(QUANTIZED_MASS, inputs, attributes, setting.uses)
    wanted = quantized_mass(setting, inputs, bits)
    agree(answers(model, inputs, kernel=True), wanted, setting.q_block)


LEVELLED = (
    Setting(group=2, q_len=100, k_len=130, q_block=64, k_block=16, causal=True),
    Setting(q_len=33, k_len=70, dim=9, q_block=40, k_block=7),
    # more keys than a kernel keeps the scores of
    Setting(kv_heads=1, q_len=70, k_len=9000, dim=8, q_block=70, k_block=1),
    Setting(
        kv_heads=1,
        q_len=20,
        k_len=9000,
        dim=8,
        q_block=20,
        k_block=300,
        causal=True,
        offsets=(8000,),
    ),
)


@needs_kernel
@pytest.mark.parametrize("setting", LEVELLED, ids=range(len(LEVELLED)))
def test_every_level_predicts_the_same(level: str, setting: Setting) -> None:
    inputs = setting.inputs()
    model = model_of(MEAN_KEY_MASS, inputs, setting.attributes, setting.uses)
    agree(answers(model, inputs, kernel=True), mean_key_mass(setting, inputs), setting.q_block)
    for bits in (4, 8):
        attributes = {**setting.attributes, "bits": bits}
        model = model_of(QUANTIZED_MASS, inputs, attributes, setting.uses)
        wanted = quantized_mass(setting, inputs, bits)
        agree(answers(model, inputs, kernel=True), wanted, setting.q_block)


@needs_kernel
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("operator", [MEAN_KEY_MASS, QUANTIZED_MASS], ids=lambda each: each.name)
def test_half_types_predict_the_same(operator: Operator, dtype: int) -> None:
    setting = Setting(group=2, causal=True)
    inputs = setting.inputs()
    model = model_of(operator, inputs, setting.attributes, setting.uses, 17, dtype)
    body, kernel = (answers(model, inputs, kernel=each) for each in (False, True))
    agree(kernel, body, setting.q_block)


@pytest.mark.parametrize("opset", [12, 13, 18, NEWEST])
@pytest.mark.parametrize("operator", [MEAN_KEY_MASS, QUANTIZED_MASS], ids=lambda each: each.name)
def test_bodies_run_in_every_opset_and_in_the_reference(operator: Operator, opset: int) -> None:
    setting = Setting(group=2, causal=True, offsets=(20,))
    inputs = setting.inputs()
    model = model_of(operator, inputs, setting.attributes, setting.uses, opset)
    wanted = answers(
        model_of(operator, inputs, setting.attributes, setting.uses), inputs, kernel=False
    )
    agree(ReferenceEvaluator(model).run(None, dict(inputs)), wanted, setting.q_block)
    agree(answers(model, inputs, kernel=False), wanted, setting.q_block)


@needs_kernel
@pytest.mark.parametrize("operator", [MEAN_KEY_MASS, QUANTIZED_MASS], ids=lambda each: each.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_spoils_its_block_of_queries_only(operator: Operator, bad: float) -> None:
    setting = Setting()
    inputs = setting.inputs()
    inputs["Q"][0, 1, 20, 3] = bad
    model = model_of(operator, inputs, setting.attributes)
    for result in answers(model, inputs, kernel=True):
        spoiled = np.isnan(result).any(axis=-1)
        assert spoiled[0, 1, 1]
        assert spoiled.sum() == 1


@needs_kernel
@pytest.mark.parametrize("operator", [MEAN_KEY_MASS, QUANTIZED_MASS], ids=lambda each: each.name)
def test_without_tokens_there_is_no_mass(operator: Operator) -> None:
    for lengths in ((0, 5), (5, 0), (0, 0)):
        setting = Setting(q_len=lengths[0], k_len=lengths[1])
        inputs = setting.inputs()
        model = model_of(operator, inputs, setting.attributes)
        for result in answers(model, inputs, kernel=True):
            assert result.shape == (
                1,
                2,
                *(-(-n // b) for n, b in zip(lengths, (16, 5), strict=True)),
            )


@needs_kernel
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q_block": 0}, ["MeanKeyMass", "q_block", "positive"]),
        ({"k_block": -1}, ["MeanKeyMass", "k_block", "positive"]),
        ({"is_causal": 2}, ["MeanKeyMass", "is_causal", "0 or 1"]),
        ({"K": np.zeros((1, 2, 5, 8), np.float32)}, ["MeanKeyMass", "do not fit", "[1, 2, 5, 8]"]),
        ({"K": np.zeros((1, 3, 5, 16), np.float32)}, ["MeanKeyMass", "multiple"]),
        ({"K": np.zeros((2, 5, 16), np.float32)}, ["MeanKeyMass", "K", "4 dimensions"]),
        ({"query_offset": np.zeros(3, np.int64)}, ["MeanKeyMass", "query_offset", "batch"]),
        ({"bits": 9}, ["QuantizedMass", "bits", "2 to 8"]),
    ],
)
def test_malformed_input_is_refused_in_words(change: dict[str, Any], words: list[str]) -> None:
    setting = Setting()
    operator = QUANTIZED_MASS if "bits" in change else MEAN_KEY_MASS
    given = {n: x for n, x in change.items() if isinstance(x, np.ndarray)}
    inputs = {**setting.inputs(), **given}
    attributes = {**setting.attributes, **{n: x for n, x in change.items() if n not in given}}
    with pytest.raises(Exception, match=words[0]) as error:
        answers(model_of(operator, inputs, attributes), inputs, kernel=True)
    assert all(word in str(error.value) for word in words), str(error.value)


# Choice -------------------------------------------------------------------------------------------


def top_k(scores: Floats, count: npt.NDArray[np.int64]) -> list[Array]:
    count = np.broadcast_to(np.clip(count, 1, scores.shape[3]), scores.shape[:3])
    indices = np.full((*scores.shape[:3], count.max()), -1, np.int32)
    order = np.argsort(-scores, axis=3, kind="stable")
    for at in np.ndindex(count.shape):
        indices[at][: count[at]] = np.sort(order[at][: count[at]])
    return [indices, count.astype(np.int32)]


def top_p(scores: Floats, tau: float) -> list[Array]:
    falling = -np.sort(-scores, axis=3, kind="stable")
    reached = np.cumsum(falling, axis=3, dtype=np.float32)
    needed = reached - falling < reached.max(axis=3, keepdims=True) * np.float32(tau)
    count = np.maximum(needed.sum(axis=3), 1)
    indices, count32 = top_k(scores, count)
    missing = scores.shape[3] - indices.shape[3]
    return [np.pad(indices, [(0, 0)] * 3 + [(0, missing)], constant_values=-1), count32]


def scores_of(shape: tuple[int, ...], seed: int, ties: bool) -> Floats:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 4, shape) if ties else random.exponential(size=shape)
    return np.asarray(scores, dtype=np.float32)


shapes = st.tuples(*[st.integers(1, 3)] * 2, st.integers(1, 5), st.integers(1, 200))


def same(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == np.int32
        np.testing.assert_array_equal(one, other)


@quick
@given(shapes, st.integers(0, 9), st.booleans(), st.booleans())
def test_the_highest_are_kept(shape: tuple[int, ...], seed: int, ties: bool, ragged: bool) -> None:
    random = np.random.default_rng(seed)
    scores = scores_of(shape, seed, ties)
    rows = [int(random.choice([1, n])) for n in shape[:3]] if ragged else [1]
    inputs = {"scores": scores, "count": random.integers(1, shape[3] + 1, rows)}
    uses = frozenset({"ragged"}) if ragged else frozenset[str]()
    model = model_of(TOP_K_BLOCKS, inputs, {}, uses)
    same(answers(model, inputs, kernel=False), top_k(**inputs))
    if CPU.unavailable() is None:
        same(answers(model, inputs, kernel=True), top_k(**inputs))


@quick
@given(shapes, st.integers(0, 9), st.booleans(), st.floats(0, 1, width=32))
def test_a_share_is_reached(shape: tuple[int, ...], seed: int, ties: bool, tau: float) -> None:
    inputs = {"scores": scores_of(shape, seed, ties)}
    model = model_of(TOP_P_BLOCKS, inputs, {"tau": tau})
    same(answers(model, inputs, kernel=False), top_p(inputs["scores"], tau))
    if CPU.unavailable() is None:
        same(answers(model, inputs, kernel=True), top_p(inputs["scores"], tau))


@pytest.mark.parametrize("opset", [12, 13, 18, NEWEST])
def test_choices_are_the_same_in_every_opset(opset: int) -> None:
    inputs: dict[str, Array] = {"scores": scores_of((2, 2, 3, 40), 1, True)}
    model = model_of(TOP_P_BLOCKS, inputs, {"tau": 0.5}, opset=opset)
    same(answers(model, inputs, kernel=False), top_p(inputs["scores"], 0.5))
    same(ReferenceEvaluator(model).run(None, dict(inputs)), top_p(inputs["scores"], 0.5))
    inputs["count"] = np.array([[[3, 40, 1]]])
    model = model_of(TOP_K_BLOCKS, inputs, {}, frozenset({"ragged"}), opset=opset)
    same(answers(model, inputs, kernel=False), top_k(**inputs))
    same(ReferenceEvaluator(model).run(None, dict(inputs)), top_k(**inputs))


@needs_kernel
def test_a_count_beyond_the_blocks_keeps_all() -> None:
    inputs = {"scores": scores_of((1, 1, 2, 6), 0, False), "count": np.array([[[0, 99]]])}
    model = model_of(TOP_K_BLOCKS, inputs, {}, frozenset({"ragged"}))
    same(answers(model, inputs, kernel=True), top_k(**inputs))


@needs_kernel
def test_nan_is_kept_last() -> None:
    scores = np.array([np.nan, 1, np.nan, 3, 2], dtype=np.float32).reshape(1, 1, 1, 5)
    inputs = {"scores": scores, "count": np.array([4])}
    found = answers(model_of(TOP_K_BLOCKS, inputs, {}), inputs, kernel=True)
    same(found, [np.array([[[[0, 1, 3, 4]]]], np.int32), np.array([[[4]]], np.int32)])


@needs_kernel
@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "words"),
    [
        (TOP_K_BLOCKS, {"count": np.ones((3, 7), np.int64)}, {}, ["count", "broadcast"]),
        (
            TOP_K_BLOCKS,
            {"scores": np.ones((1, 1, 2, 0), np.float32)},
            {},
            ["scores", "no key blocks"],
        ),
        (TOP_P_BLOCKS, {"scores": np.ones((2, 2), np.float32)}, {}, ["scores", "4 dimensions"]),
        (TOP_P_BLOCKS, {}, {"tau": float("nan")}, ["tau", "at least 0"]),
    ],
)
def test_a_malformed_choice_is_refused_in_words(
    operator: Operator, inputs: dict[str, Array], attributes: dict[str, float], words: list[str]
) -> None:
    given: dict[str, Array] = {"scores": scores_of((1, 2, 3, 4), 0, False)}
    if operator is TOP_K_BLOCKS:
        given["count"] = np.array([2])
    given |= inputs
    with pytest.raises(Exception, match=operator.name) as error:
        answers(model_of(operator, given, attributes), given, kernel=True)
    assert all(word in str(error.value) for word in words), str(error.value)
