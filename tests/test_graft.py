"""A rewritten model, held field by field against its original: only what must differ differs."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import (
    BOOL,
    FLOAT,
    QKV,
    Array,
    C,
    Form,
    Y,
    build,
    feeds_of,
    model_of,
    node,
    plain_feeds,
    plain_model,
    plain_nodes,
    save,
    tensor,
)
from onnx import AttributeProto, GraphProto, ModelProto, StringStringEntryProto, helper
from running import both_ways, close, found, optimized, rewritten, run

from sparsify import Plan, apply_plan, find_sites, load, make_plan
from sparsify.plan import Request

OURS = "ai.sparsify"


def decorated() -> ModelProto:
    """Two attentions with a shared Transpose, a branch that captures, and every kind of remark."""
    nodes = [
        *plain_nodes(),
        node("Sigmoid", "y", "again", name="between"),
        node("MatMul", "again kt", "raw2"),
        node("Mul", "raw2 c2", "scaled2"),
        node("Softmax", "scaled2", "p2", axis=-1),
        node("MatMul", "p2 v", "y2"),
        _choice("y2", "z"),
        node("Relu", "q", "dead_before"),
    ]
    outputs = [("z", FLOAT, ["b", 4, "s", 16]), ("kt", FLOAT, ["b", 4, 16, "t"])]
    stored = [C, tensor("c2", 0.5), tensor("never_read", [1.0, 2.0])]
    model = build(nodes, [*QKV, ("flag", BOOL, [])], outputs, stored)
    model.doc_string, model.domain, model.model_version = "a model", "org.example", 7
    model.producer_version = "1.2.3"
    model.metadata_props.add(key="owner", value="someone")
    model.graph.doc_string = "a graph"
    for n in model.graph.node:
        n.doc_string = f"doc of {n.name}"
        _annotate(n.metadata_props, "node", n.name)
    for name in ("kt", "raw", "scaled", "p", "y", "again", "y2"):
        info = helper.make_tensor_value_info(name, FLOAT, ["b", 4, None, None])
        info.doc_string = f"info of {name}"
        info.type.tensor_type.shape.dim[0].denotation = "BATCH"
        model.graph.value_info.append(info)
    note = model.graph.quantization_annotation.add(tensor_name="y2")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="never_read")
    model.graph.input[0].doc_string = "the queries"
    _annotate(model.graph.metadata_props, "graph", "kept")
    model.opset_import.append(helper.make_opsetid("org.example", 3))
    return model


def _annotate(entries: "list[StringStringEntryProto]", key: str, value: str) -> None:
    entries.add(key=key, value=value)  # type: ignore[attr-defined]


def _choice(source: str, result: str) -> onnx.NodeProto:
    def branch(op_type: str, name: str) -> GraphProto:
        inner = node(op_type, f"{source} q", name)
        inner.doc_string = "inside"
        info = helper.make_tensor_value_info(name, FLOAT, ["b", 4, "s", 16])
        return helper.make_graph([inner], name, [], [info], doc_string="a branch")

    return helper.make_node(
        "If",
        ["flag"],
        [result],
        "If_0",
        then_branch=branch("Add", "t"),
        else_branch=branch("Sub", "e"),
    )


VANISHED_NODES = {"make_raw", "make_scaled", "softmax", "make_y"}
VANISHED_NODES |= {"make_raw2", "make_scaled2", "make_p2", "make_y2"}
VANISHED_TENSORS = {"raw", "scaled", "p"}


def by_name(items: object) -> dict[str, bytes]:
    return {x.name: x.SerializeToString(deterministic=True) for x in items}  # type: ignore[attr-defined]


def check_invariant(
    before: ModelProto, after: ModelProto, nodes: set[str], stored: set[str], infos: set[str]
) -> None:
    """Nothing but these nodes, initializers and value_infos is gone; nothing but ours is new."""
    assert {f.name for f, _ in after.ListFields()} - {f.name for f, _ in before.ListFields()} <= {
        "functions",
        "metadata_props",
    }
    for name in ("ir_version", "producer_name", "producer_version", "domain", "model_version"):
        assert getattr(after, name) == getattr(before, name)
    assert after.doc_string == before.doc_string
    assert list(after.opset_import)[:-1] == list(before.opset_import)
    assert after.opset_import[-1].domain == OURS
    assert [f.domain for f in after.functions][len(before.functions) :] == [OURS]
    count = len(before.metadata_props)
    assert list(after.metadata_props)[:count] == list(before.metadata_props)
    assert all(entry.key.startswith(f"{OURS}.") for entry in after.metadata_props[count:])
    _check_graph(before.graph, after.graph, nodes, stored, infos)


def _check_graph(
    before: GraphProto, after: GraphProto, nodes: set[str], stored: set[str], infos: set[str]
) -> None:
    for field in ("input", "output", "quantization_annotation", "sparse_initializer"):
        assert list(getattr(after, field)) == list(getattr(before, field)), field
    for field in ("name", "doc_string"):
        assert getattr(after, field) == getattr(before, field)
    assert list(after.metadata_props) == list(before.metadata_props)
    kept = [n for n in after.node if not n.name.startswith("sparsify/")]
    assert kept == [n for n in before.node if n.name not in nodes]
    old, new = by_name(before.initializer), by_name(after.initializer)
    assert list(new) == [name for name in old if name not in stored]
    assert all(new[name] == old[name] for name in new)
    old, new = by_name(before.value_info), by_name(after.value_info)
    assert new == {name: value for name, value in old.items() if name not in infos}


def in_order(graph: GraphProto) -> None:
    """Every node reads only what was made before it."""
    known = {value.name for value in graph.input} | {t.name for t in graph.initializer} | {""}
    for n in graph.node:
        assert set(n.input) <= known, n.name
        known |= set(n.output)


def test_only_the_replaced_sites_change(tmp_path: Path) -> None:
    before = decorated()
    after = onnx.load(rewritten(before, tmp_path))
    check_invariant(before, after, VANISHED_NODES, {"c", "c2"}, VANISHED_TENSORS)


def test_an_annotation_never_names_a_dropped_initializer(tmp_path: Path) -> None:
    before = decorated()
    before.graph.quantization_annotation[0].quant_parameter_tensor_names[0].value = "c2"
    after = onnx.load(rewritten(before, tmp_path))
    stored = {t.name for t in after.graph.initializer}
    for note in after.graph.quantization_annotation:
        assert {entry.value for entry in note.quant_parameter_tensor_names} <= stored


def test_an_initializer_of_replaced_nodes_alone_goes(tmp_path: Path) -> None:
    before = plain_model()
    after = onnx.load(rewritten(before, tmp_path))
    names = {"make_kt", "make_raw", "make_scaled", "softmax", "make_y"}
    check_invariant(before, after, names, {"c"}, set())


def test_what_the_body_of_an_if_captures_survives(tmp_path: Path) -> None:
    output = rewritten(decorated(), tmp_path)
    for flag in (False, True):
        feeds: dict[str, Array] = {**plain_feeds(), "flag": np.array(flag)}
        wanted = run(tmp_path / "m.onnx", feeds, library=False)
        for result in both_ways(output, feeds):
            close(result["z"], wanted["z"].astype(np.float64), 2e-5)
            assert (result["kt"] == wanted["kt"]).all()


def test_a_transpose_captured_by_a_branch_alone_survives(tmp_path: Path) -> None:
    nodes = [*plain_nodes(), _captures("kt")]
    outputs = [*Y, ("z", FLOAT, [])]
    model = build(nodes, [*QKV, ("flag", BOOL, [])], outputs, [C])
    after = onnx.load(rewritten(model, tmp_path))
    assert "make_kt" in {n.name for n in after.graph.node}


def _captures(name: str) -> onnx.NodeProto:
    def branch(op_type: str, result: str) -> GraphProto:
        inner = helper.make_node(op_type, [name], [result], result, keepdims=0)
        info = helper.make_tensor_value_info(result, FLOAT, [])
        return helper.make_graph([inner], result, [], [info])

    branches = {"then_branch": branch("ReduceMax", "a"), "else_branch": branch("ReduceMin", "e")}
    return helper.make_node("If", ["flag"], ["z"], "If_0", **branches)


@pytest.mark.parametrize("pattern", [(), ("window:size=8,q_block=8,k_block=8",)])
def test_nodes_stand_in_topological_order(pattern: tuple[str, ...], tmp_path: Path) -> None:
    after = onnx.load(rewritten(decorated(), tmp_path, patterns=pattern))
    in_order(after.graph)
    onnx.checker.check_model(after, full_check=True)


def test_no_attribute_is_left_to_a_default(tmp_path: Path) -> None:
    after = onnx.load(rewritten(decorated(), tmp_path))
    made = [n for n in after.graph.node if n.domain == OURS]
    assert len(made) == 2
    for n in made:
        names = {a.name for a in n.attribute}
        assert set(after.functions[0].attribute) <= names
        assert all(a.type in (AttributeProto.INT, AttributeProto.FLOAT) for a in n.attribute)


def test_initializers_that_are_inputs_too_stay(tmp_path: Path) -> None:
    before = model_of(Form(scale="q_only"))
    (scale,) = before.graph.initializer
    before.graph.input.append(helper.make_tensor_value_info(scale.name, FLOAT, scale.dims))
    after = onnx.load(rewritten(before, tmp_path))
    assert after.graph.input == before.graph.input
    assert list(after.graph.initializer) == [scale]


def test_a_scale_that_callers_may_override_is_not_frozen(tmp_path: Path) -> None:
    """From IR 4 on, an initializer that is an input too is only a default."""
    before = plain_model()
    before.graph.input.append(helper.make_tensor_value_info("c", FLOAT, []))
    path = save(before, tmp_path)
    report = optimized(path, tmp_path / "out.onnx")
    if not report.replaced:
        return
    feeds = {**plain_feeds(), "c": np.array(2.0, np.float32)}
    wanted = run(path, feeds, library=False)["y"].astype(np.float64)
    for result in both_ways(tmp_path / "out.onnx", feeds):
        close(result["y"], wanted, 1e-4)


def test_names_of_ours_that_are_taken_are_not_used_again(tmp_path: Path) -> None:
    nodes = plain_nodes()
    nodes[0].name = "sparsify/SparseAttention_0"
    nodes.append(node("Relu", "y", "sparsify/attended_0", name="sparsify/Constant_0"))
    outputs = [*Y, ("sparsify/attended_0", FLOAT, ["b", 4, "s", 16])]
    model = build(nodes, QKV, outputs, [C])
    after = onnx.load(rewritten(model, tmp_path))
    names = [n.name for n in after.graph.node]
    assert len(names) == len(set(names))
    in_order(after.graph)


def test_the_input_proto_is_not_changed(tmp_path: Path) -> None:
    model = load(save(decorated(), tmp_path))
    copy = model.proto.SerializeToString(deterministic=True)
    findings = find_sites(model)
    plan: Plan = make_plan(model, findings, Request())
    apply_plan(model, findings.sites, plan)
    assert model.proto.SerializeToString(deterministic=True) == copy


def test_an_output_has_nothing_more_to_replace(tmp_path: Path) -> None:
    output = rewritten(model_of(Form(mask="where", guard=True)), tmp_path)
    findings = find_sites(load(output))
    assert findings.sites == ()


def test_a_half_replaced_model_is_left_alone(tmp_path: Path) -> None:
    """A file of ours cannot take a second function and import: it is refused, with the reason."""
    model = load(save(decorated(), tmp_path))
    findings = find_sites(model)
    data = json.loads(make_plan(model, findings, Request()).to_json())
    data["decisions"][1] |= {"status": "kept", "grade": None}
    half = apply_plan(model, findings.sites, Plan.from_json(json.dumps(data)))
    onnx.checker.check_model(half)
    path = save(half, tmp_path, "half.onnx")
    report = optimized(path, tmp_path / "full.onnx")
    assert report.replaced == 0
    assert {refusal.code for refusal in report.refusals} == {"already_sparse"}
    assert not (tmp_path / "full.onnx").exists()


def test_a_local_function_of_the_model_stays(tmp_path: Path) -> None:
    twice = helper.make_function(
        "org.example",
        "Twice",
        ["x"],
        ["r"],
        [node("Add", "x x", "r")],
        [helper.make_opsetid("", 17)],
    )
    called = node("Twice", "y", "z")
    called.domain = "org.example"
    outputs = [("z", FLOAT, ["b", 4, "s", 16])]
    model = build([*plain_nodes(), called], QKV, outputs, [C])
    model.functions.append(twice)
    model.opset_import.append(helper.make_opsetid("org.example", 1))
    output = rewritten(model, tmp_path)
    assert onnx.load(output).functions[0] == twice
    feeds = plain_feeds()
    wanted = run(tmp_path / "m.onnx", feeds, library=False)["z"].astype(np.float64)
    for result in both_ways(output, feeds):
        close(result["z"], wanted, 2e-5)


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    path = save(model_of(Form(mask="where_then_add", repeat="expand")), tmp_path)
    files = [tmp_path / name for name in ("one.onnx", "two.onnx")]
    for file in files:
        optimized(path, file, patterns=("window:size=16,q_block=16,k_block=8",))
    assert files[0].read_bytes() == files[1].read_bytes()
    feeds = feeds_of(Form(mask="where_then_add", repeat="expand"))
    assert len(list(both_ways(files[0], feeds))) == 2


def test_nodes_without_names(tmp_path: Path) -> None:
    model = decorated()
    for n in model.graph.node:
        n.name = ""
    findings = found(model, tmp_path)
    assert len({site.name for site in findings.sites}) == 2
    after = onnx.load(rewritten(model, tmp_path))
    assert sum(n.domain == OURS for n in after.graph.node) == 2


def test_sites_of_one_name_are_all_replaced(tmp_path: Path) -> None:
    """Equal node names are bad, but legal for the checker; a report may not count them twice."""
    model = decorated()
    for n in model.graph.node:
        if n.op_type == "Softmax":
            n.name = "softmax"
    path = save(model, tmp_path)
    report = optimized(path, tmp_path / "out.onnx")
    after = onnx.load(tmp_path / "out.onnx")
    assert sum(n.domain == OURS for n in after.graph.node) == report.replaced
