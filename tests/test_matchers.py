"""Every spelling of an attention is found with its scale; every look-alike is refused with why."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import (
    BOOL,
    CASTS,
    FLOAT,
    HALF,
    MASKS,
    QKV,
    REPEATS,
    SCALES,
    TRANSPOSES,
    C,
    Form,
    Y,
    attend,
    bfloat16_model,
    build,
    feeds_of,
    model_of,
    node,
    plain_feeds,
    plain_model,
    plain_nodes,
    products,
    rank,
    softmax,
    tensor,
    truth_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from running import both_ways, close, codes, found, only_site, rewritten

from sparsify import find_sites, load

EXACT = 2e-5


def check_form(form: Form, folder: Path) -> None:
    """The form is one proved site, with the right scale, and its replacement computes the truth."""
    model = model_of(form)
    site = only_site(model, folder)
    assert site.scale == pytest.approx(form.factor, rel=1e-3 if form.dtype == HALF else 1e-6)
    assert site.name == "softmax"
    assert site.guarded == form.guard
    assert site.group == (2 if form.repeat == "expand" and form.k_transpose != "fused" else 1)
    output = rewritten(model, folder)
    feeds = feeds_of(form)
    for result in both_ways(output, feeds):
        close(result["y"], truth_of(form, feeds), 2e-2 if form.dtype == HALF else EXACT)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [FLOAT, HALF])
def test_every_place_of_the_scale(scale: str, dtype: int, tmp_path: Path) -> None:
    check_form(Form(scale=scale, dtype=dtype), tmp_path)


@pytest.mark.parametrize("k_transpose", TRANSPOSES)
@pytest.mark.parametrize("scale", ["mul_after", "split"])
def test_every_transpose_of_k(k_transpose: str, scale: str, tmp_path: Path) -> None:
    check_form(Form(scale=scale, k_transpose=k_transpose), tmp_path)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("guard", [False, True])
def test_every_mask(mask: str, guard: bool, tmp_path: Path) -> None:
    check_form(Form(mask=mask, guard=guard), tmp_path)


@pytest.mark.parametrize("casts", CASTS)
@pytest.mark.parametrize("mask", ["none", "add", "where"])
def test_casts_around_the_softmax_in_half_precision(casts: str, mask: str, tmp_path: Path) -> None:
    check_form(Form(casts=casts, mask=mask, dtype=HALF), tmp_path)


@pytest.mark.parametrize("repeat", REPEATS)
def test_every_repeat_of_key_value_heads(repeat: str, tmp_path: Path) -> None:
    check_form(Form(repeat=repeat, value_dim=8), tmp_path)


@pytest.mark.parametrize("opset", [12, 13, 17, 18, 21])
def test_opsets(opset: int, tmp_path: Path) -> None:
    check_form(Form(opset=opset, mask="where", guard=True), tmp_path)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_operands_stand_before_scales_and_transposes(name: str, tmp_path: Path) -> None:
    site = only_site(model_of(Form(scale="split")), tmp_path)
    operands = {"q": site.query, "k": site.key, "v": site.value}
    assert operands[name].tensor == name


def test_the_site_tells_its_sizes_and_nodes(tmp_path: Path) -> None:
    site = only_site(model_of(Form(symbolic=False, repeat="expand", mask="add")), tmp_path)
    sizes = (site.batch, site.q_heads, site.kv_heads, site.q_length, site.k_length)
    assert sizes == (2, 4, 2, 20, 24)
    assert (site.head_dim, site.value_dim) == (16, 16)
    assert site.nodes[0] == "qk"
    assert site.nodes[-1] == "pv"
    assert site.mask == "additive"


@settings(
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    form=st.builds(
        Form,
        scale=st.sampled_from(sorted(SCALES)),
        k_transpose=st.sampled_from(TRANSPOSES),
        mask=st.sampled_from(MASKS),
        mask_shape=st.sampled_from(["b1st", "bhst", "b11t", "11st", "st", "1hst"]),
        guard=st.booleans(),
        casts=st.sampled_from(CASTS),
        repeat=st.sampled_from(REPEATS),
        identities=st.booleans(),
        dtype=st.sampled_from([FLOAT, HALF]),
        opset=st.sampled_from([12, 13, 17, 20]),
        value_dim=st.sampled_from([8, 16]),
    )
)
def test_spellings_combine(form: Form, tmp_path: Path) -> None:
    if form.k_transpose == "fused" and form.repeat != "none":
        form = replace(form, repeat="none")  # the repeat stands before the fused transpose
    if form.opset == 12 and form.repeat == "expand":
        form = replace(form, opset=13)  # Unsqueeze takes its axes as an input
    check_form(form, tmp_path)


def test_a_scale_of_100_is_kept(tmp_path: Path) -> None:
    """Scores scaled by 100 in float32 between half-precision products (a diffusion model)."""
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Cast", "raw", "wide", to=FLOAT),
        node("Mul", "wide c", "scaled"),
        node("Softmax", "scaled", "p", axis=-1),
        node("Cast", "p", "half", to=HALF),
        node("MatMul", "half v", "y"),
    ]
    halves = [(name, HALF, shape) for name, _, shape in QKV]
    model = build(nodes, halves, [("y", HALF, rank(4))], [tensor("c", 100.0)])
    assert only_site(model, tmp_path).scale == 100.0
    output = rewritten(model, tmp_path)
    feeds = {name: (0.2 * x).astype(np.float16) for name, x in plain_feeds().items()}
    wanted = attend(feeds["q"], feeds["k"], feeds["v"], 100.0)
    for result in both_ways(output, feeds):
        close(result["y"], wanted, 2e-2)


def test_softcap(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "scaled"),
        node("Div", "scaled cap", "small"),
        node("Tanh", "small", "bent"),
        node("Mul", "bent cap", "capped"),
        node("Add", "capped bias", "biased"),
        node("Softmax", "biased", "p", axis=-1),
        node("MatMul", "p v", "y"),
    ]
    inputs = [*QKV, ("bias", FLOAT, [1, 1, "s", "t"])]
    model = build(nodes, inputs, Y, [tensor("c", 0.5), tensor("cap", 2.0)])
    site = only_site(model, tmp_path)
    assert (site.scale, site.softcap) == (pytest.approx(0.5), pytest.approx(2.0))
    feeds = plain_feeds()
    bias = np.where(np.tri(20, 24, 4), 0, -np.inf).astype(np.float32)[None, None]
    scores = 2.0 * np.tanh(0.5 * products(feeds["q"], feeds["k"]) / 2.0) + bias
    for result in both_ways(rewritten(model, tmp_path), {**feeds, "bias": bias}):
        close(result["y"], softmax(scores) @ feeds["v"].astype(np.float64), EXACT)


def test_attention_of_three_dimensions(tmp_path: Path) -> None:
    """Heads folded into the batch, K turned by (0, 2, 1), softmax over axis 2."""
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw c", "scaled"),
        node("Softmax", "scaled", "p", axis=2),
        node("MatMul", "p v", "y"),
    ]
    inputs = [(name, FLOAT, ["n", "s" if name == "q" else "t", 16]) for name in "qkv"]
    model = build(nodes, inputs, [("y", FLOAT, ["n", "s", 16])], [C])
    feeds = {name: x[0] for name, x in plain_feeds().items()}
    for result in both_ways(rewritten(model, tmp_path), feeds):
        close(result["y"], attend(feeds["q"], feeds["k"], feeds["v"], 0.25), EXACT)


def test_a_relative_term_computed_from_the_queries_is_a_bias(tmp_path: Path) -> None:
    nodes = plain_nodes(scores="both")
    nodes.insert(3, node("MatMul", "q r", "relative"))
    nodes.insert(4, node("Add", "scaled relative", "both"))
    inputs = [*QKV, ("r", FLOAT, [1, 4, 16, "t"])]
    model = build(nodes, inputs, Y, [C])
    assert only_site(model, tmp_path).mask == "additive"
    feeds = plain_feeds()
    feeds["r"] = np.random.default_rng(1).standard_normal((1, 4, 16, 24)).astype(np.float32)
    bias = feeds["q"].astype(np.float64) @ feeds["r"]
    for result in both_ways(rewritten(model, tmp_path), feeds):
        close(result["y"], attend(feeds["q"], feeds["k"], feeds["v"], 0.25, bias), EXACT)


def test_a_number_added_to_every_score_is_no_mask(tmp_path: Path) -> None:
    nodes = plain_nodes(scores="moved")
    nodes.insert(3, node("Add", "scaled one", "moved"))
    site = only_site(build(nodes, QKV, Y, [C, tensor("one", 1.0)]), tmp_path)
    assert site.masks == ()


def test_weights_of_scale_and_shape_in_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save_model(
        model_of(Form(repeat="expand")),
        path,
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    findings = find_sites(load(path))
    assert [site.scale for site in findings.sites] == [0.25]


# Look-alikes -------------------------------------------------------------------------------------


def test_no_softmax_no_findings(tmp_path: Path) -> None:
    model = build([node("MatMul", "q k", "y")], [("q", FLOAT, [4, 4]), ("k", FLOAT, [4, 4])], Y)
    assert codes(model, tmp_path) == []


def test_softmax_without_a_product_of_values(tmp_path: Path) -> None:
    nodes = [*plain_nodes()[:-1], node("ReduceMax", "p", "y", axes=[-1])]
    assert codes(build(nodes, QKV, [("y", FLOAT, rank(4))], [C]), tmp_path) == ["not_attention"]


@pytest.mark.parametrize("axis", [1, 2, -2, 0])
def test_softmax_over_another_axis(axis: int, tmp_path: Path) -> None:
    nodes = plain_nodes()
    nodes[3] = node("Softmax", "scaled", "p", name="softmax", axis=axis)
    assert codes(build(nodes, QKV, Y, [C]), tmp_path) == ["softmax_axis"]


def test_the_default_axis_of_old_opsets_is_another_axis(tmp_path: Path) -> None:
    nodes = plain_nodes()
    nodes[3] = node("Softmax", "scaled", "p", name="softmax")
    assert codes(build(nodes, QKV, Y, [C], opset=12), tmp_path) == ["softmax_axis"]
    assert only_site(build(nodes, QKV, Y, [C], opset=13), tmp_path).scale == 0.25


@pytest.mark.parametrize("opset", [9, 11])
def test_an_opset_without_a_body_is_refused(opset: int, tmp_path: Path) -> None:
    (refusal,) = found(plain_model(opset), tmp_path).refusals
    assert refusal.code == "opset_too_old"
    assert str(opset) in refusal.reason


def test_probabilities_are_an_output(tmp_path: Path) -> None:
    outputs = [*Y, ("p", FLOAT, ["b", 4, "s", "t"])]
    refused = codes(build(plain_nodes(), QKV, outputs, [C]), tmp_path)
    assert refused == ["probabilities_shared"]


def test_probabilities_are_averaged_elsewhere(tmp_path: Path) -> None:
    nodes = [*plain_nodes(), node("ReduceMean", "p", "mean", axes=[1])]
    outputs = [*Y, ("mean", FLOAT, rank(4))]
    assert codes(build(nodes, QKV, outputs, [C]), tmp_path) == ["probabilities_shared"]


def test_probabilities_meet_two_values(tmp_path: Path) -> None:
    nodes = [*plain_nodes(), node("MatMul", "p q2", "z")]
    inputs = [*QKV, ("q2", FLOAT, ["b", 4, "t", 16])]
    outputs = [*Y, ("z", FLOAT, rank(4))]
    assert codes(build(nodes, inputs, outputs, [C]), tmp_path) == ["probabilities_shared"]


@pytest.mark.parametrize("tensor_name", ["raw", "scaled"])
def test_scores_are_an_output(tensor_name: str, tmp_path: Path) -> None:
    outputs = [*Y, (tensor_name, FLOAT, ["b", 4, "s", "t"])]
    assert codes(build(plain_nodes(), QKV, outputs, [C]), tmp_path) == ["scores_shared"]


def test_scores_are_captured_by_a_branch(tmp_path: Path) -> None:
    def branch(source: str, name: str) -> object:
        nodes = [helper.make_node("ReduceMax", [source], [name], keepdims=0)]
        result = helper.make_tensor_value_info(name, FLOAT, [])
        return helper.make_graph(nodes, name, [], [result])

    choice = helper.make_node(
        "If",
        ["flag"],
        ["z"],
        "If_0",
        then_branch=branch("scaled", "a"),
        else_branch=branch("p", "e"),
    )
    inputs = [*QKV, ("flag", BOOL, [])]
    outputs = [*Y, ("z", FLOAT, [])]
    model = build([*plain_nodes(), choice], inputs, outputs, [C])
    assert codes(model, tmp_path)[0] in ("probabilities_shared", "scores_shared")


def test_probabilities_on_the_right(tmp_path: Path) -> None:
    nodes = plain_nodes()
    nodes[4] = node("MatMul", "v p", "y")
    inputs = [*QKV[:2], ("v", FLOAT, ["b", 4, 16, "s"])]
    outputs = [("y", FLOAT, ["b", 4, 16, "t"])]
    refused = codes(build(nodes, inputs, outputs, [C]), tmp_path)
    assert refused == ["probabilities_on_right"]


def test_probabilities_turned_before_the_product(tmp_path: Path) -> None:
    nodes = plain_nodes()
    nodes[4:] = [node("Transpose", "p", "pt", perm=[0, 1, 3, 2]), node("MatMul", "pt v", "y")]
    inputs = [*QKV[:2], ("v", FLOAT, ["b", 4, "s", 16])]
    model = build(nodes, inputs, [("y", FLOAT, rank(4))], [C])
    assert codes(model, tmp_path) == ["probabilities_on_right"]


def test_the_product_before_the_softmax_is_with_a_weight(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "q w", "raw"),
        node("Softmax", "raw", "p", axis=-1),
        node("MatMul", "p v", "y"),
    ]
    inputs = [QKV[0], ("v", FLOAT, ["b", 4, 24, 16])]
    weight = tensor("w", np.ones((16, 24)))
    assert codes(build(nodes, inputs, Y, [weight]), tmp_path) == ["not_attention"]


def test_heads_mixed_between_product_and_softmax(tmp_path: Path) -> None:
    nodes = plain_nodes(scores="back")
    nodes[3:3] = [
        node("Transpose", "scaled", "heads_last", perm=[0, 2, 3, 1]),
        node("MatMul", "heads_last w", "mixed"),
        node("Transpose", "mixed", "back", perm=[0, 3, 1, 2]),
    ]
    model = build(nodes, QKV, Y, [C, tensor("w", np.ones((4, 4)))])
    assert codes(model, tmp_path) == ["scores_unknown"]


def test_double_precision_is_refused(tmp_path: Path) -> None:
    double = TensorProto.DOUBLE
    model = build(
        plain_nodes(),
        [(name, double, shape) for name, _, shape in QKV],
        [("y", double, ["b", 4, "s", 16])],
        [tensor("c", 0.25, np.float64)],
    )
    assert codes(model, tmp_path) == ["mixed_dtype"]


def test_a_type_that_onnxruntime_does_not_run_is_proved_in_float(tmp_path: Path) -> None:
    site = only_site(bfloat16_model(), tmp_path)
    assert site.element_type == TensorProto.BFLOAT16
    assert site.proof is not None


def test_an_open_number_of_windows_is_refused(tmp_path: Path) -> None:
    nodes = plain_nodes()
    nodes[0] = node("Transpose", "k", "kt", perm=[0, 1, 2, 4, 3])
    inputs = [(name, FLOAT, ["b", "w", 4, "s" if name == "q" else "t", 16]) for name in "qkv"]
    assert codes(build(nodes, inputs, [("y", FLOAT, rank(5))], [C]), tmp_path) == [
        "rank_unsupported"
    ]


def test_a_branch_is_found_with_its_scope(tmp_path: Path) -> None:
    def branch(name: str) -> object:
        nodes = [
            helper.make_node(
                n.op_type, n.input, [f"{name}_{o}" for o in n.output], f"{name}_{n.name}"
            )
            for n in plain_nodes()
        ]
        for made, n in zip(nodes, plain_nodes(), strict=True):
            made.attribute.extend(n.attribute)
            own = {o for other in plain_nodes() for o in other.output}
            made.input[:] = [f"{name}_{i}" if i in own else i for i in n.input]
        result = helper.make_tensor_value_info(f"{name}_y", FLOAT, ["b", 4, "s", 16])
        return helper.make_graph(nodes, name, [], [result])

    choice = helper.make_node(
        "If", ["flag"], ["y"], "If_0", then_branch=branch("then"), else_branch=branch("otherwise")
    )
    model = build([choice], [*QKV, ("flag", BOOL, [])], Y, [C])
    findings = found(model, tmp_path)
    assert findings.refusals == ()
    assert [site.scope for site in findings.sites] == ["If_0/else_branch", "If_0/then_branch"]


@pytest.mark.parametrize("fill", [-2.0, -12.0, -20.0])
def test_a_weak_fill_is_not_a_mask(fill: float, tmp_path: Path) -> None:
    """A masked score that keeps weight where logits are large: refused, or right all the same."""
    form = Form(mask="where", fill=fill)
    model = model_of(form)
    if not found(model, tmp_path).sites:
        return
    feeds = feeds_of(form)
    feeds["q"] = 20 * feeds["q"]
    for result in both_ways(rewritten(model, tmp_path), feeds):
        close(result["y"], truth_of(form, feeds), 1e-3)


BROADCASTS = {
    "keys and values of batch 1": ((2, 4, 20, 16), (1, 4, 24, 16), (1, 4, 24, 16)),
    "queries of batch 1": ((1, 4, 20, 16), (2, 4, 24, 16), (2, 4, 24, 16)),
    "values of batch 1": ((2, 4, 20, 16), (2, 4, 24, 16), (1, 4, 24, 16)),
    "one head of queries": ((2, 1, 20, 16), (2, 4, 24, 16), (2, 4, 24, 16)),
    "one head of keys": ((2, 4, 20, 16), (2, 1, 24, 16), (2, 4, 24, 16)),
    "one head of values": ((2, 4, 20, 16), (2, 4, 24, 16), (2, 1, 24, 16)),
    "one head of keys and values": ((2, 4, 20, 16), (2, 1, 24, 16), (2, 1, 24, 16)),
    "keys of rank 2": ((2, 4, 20, 16), (24, 16), (2, 4, 24, 16)),
    "keys of rank 3": ((2, 4, 20, 16), (4, 24, 16), (2, 4, 24, 16)),
    "values of rank 3": ((2, 4, 20, 16), (2, 4, 24, 16), (4, 24, 16)),
    "keys and values of rank 3": ((2, 4, 20, 16), (4, 24, 16), (4, 24, 16)),
    "two dimensions": ((20, 16), (24, 16), (24, 16)),
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", BROADCASTS)
def test_broadcasting_operands_are_right_or_refused(
    name: str, symbolic: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    shapes = dict(zip("qkv", BROADCASTS[name], strict=True))
    feeds = {key: rng.standard_normal(s).astype(np.float32) for key, s in shapes.items()}
    nodes = plain_nodes()
    last = len(shapes["k"]) - 1
    turned = [*range(last - 1), last, last - 1]
    nodes[0] = node("Transpose", "k", "kt", perm=turned)
    inputs = [
        (key, FLOAT, [f"{key}{i}" for i in range(len(s) - 1)] + [16] if symbolic else list(s))
        for key, s in shapes.items()
    ]
    result_rank = max(len(shape) for shape in shapes.values())
    model = build(nodes, inputs, [("y", FLOAT, rank(result_rank))], [C])
    findings = found(model, tmp_path)
    assert len(findings.sites) + len(findings.refusals) == 1
    if findings.sites:
        wanted = attend(feeds["q"], feeds["k"], feeds["v"], 0.25)
        for result in both_ways(rewritten(model, tmp_path), feeds):
            close(result["y"], wanted, EXACT)


@pytest.mark.parametrize("shape", [(2, 1, 20, 24), (1, 4, 20, 24), (2, 4, 1, 24)])
def test_a_mask_that_widens_the_scores_is_right_or_refused(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = plain_nodes(scores="biased")
    nodes.insert(3, node("Add", "scaled bias", "biased"))
    sizes = {"q": (1, 1, 20, 16), "k": (1, 1, 24, 16), "v": (shape[0], shape[1], 24, 16)}
    inputs = [(key, FLOAT, list(s)) for key, s in sizes.items()]
    model = build(nodes, [*inputs, ("bias", FLOAT, list(shape))], [("y", FLOAT, rank(4))], [C])
    findings = found(model, tmp_path)
    assert len(findings.sites) + len(findings.refusals) == 1
    if findings.sites:
        rng = np.random.default_rng(0)
        feeds = {key: rng.standard_normal(s).astype(np.float32) for key, s in sizes.items()}
        feeds["bias"] = rng.standard_normal(shape).astype(np.float32)
        wanted = attend(feeds["q"], feeds["k"], feeds["v"], 0.25, feeds["bias"])
        for result in both_ways(rewritten(model, tmp_path), feeds):
            close(result["y"], wanted, EXACT)
