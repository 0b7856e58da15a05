"""Attentions in bodies and local functions: found, proved, replaced, and nothing else touched."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import FLOAT, HALF, QKV, C, Y, build, node, plain_feeds, save, tensor
from onnx import AttributeProto, GraphProto, ModelProto, helper
from onnx.reference import ReferenceEvaluator
from running import both_ways, close, found, optimized, rewritten, run
from scopes import (
    CASES,
    FLAG,
    SHAPE,
    Case,
    attention,
    body,
    both_branches,
    call,
    choice,
    feeds_for,
    function,
    function_called_twice,
    function_in_function,
    mask_inside_and_outside,
    with_functions,
)

from sparsify import find_sites, load
from sparsify.graft import graft
from sparsify.model import skeleton
from sparsify.places import place_named, places
from sparsify.uses import made_in

OURS = "ai.sparsify"


@pytest.mark.parametrize("name", CASES)
def test_every_scope_is_searched(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    findings = found(case.model, tmp_path)
    assert findings.refusals == ()
    assert tuple(site.scope for site in findings.sites) == case.scopes
    assert all(site.name.startswith(site.scope) for site in findings.sites)


@pytest.mark.parametrize("pattern", [(), ("window:size=512,q_block=8,k_block=8",)])
@pytest.mark.parametrize("name", CASES)
def test_a_rewritten_scope_computes_the_same(
    name: str, pattern: tuple[str, ...], tmp_path: Path
) -> None:
    model = CASES[name]().model
    output = rewritten(model, tmp_path, patterns=pattern)
    onnx.checker.check_model(onnx.load(output), full_check=True)
    for flag, sizes in ((True, (2, 20, 24)), (False, (2, 20, 24)), (True, (3, 7, 33))):
        feeds = feeds_for(model, flag=flag, batch=sizes[0], s=sizes[1], t=sizes[2])
        wanted = run(tmp_path / "m.onnx", feeds, library=False)
        for result in both_ways(output, feeds):
            for key, values in wanted.items():
                close(result[key], values.astype(np.float64), 1e-4)


@pytest.mark.parametrize("name", CASES)
def test_nothing_else_differs(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    decorate(case.model)
    after = onnx.load(rewritten(case.model, tmp_path))
    before = without_replaced(case)
    assert without_ours(after) == before


def decorate(model: ModelProto) -> None:
    """Remarks and value_info at every level."""
    for place in places(model):
        place.graph.doc_string = f"doc of {place.name}"
        for n in place.graph.node:
            n.doc_string = "doc"
            n.metadata_props.add(key="node", value=n.name)
        for name in sorted({o for n in place.graph.node for o in n.output}):
            if model.ir_version >= 10 or not place.in_function:
                info = place.graph.value_info.add(name=name)
                info.doc_string = f"info of {name}"


def without_replaced(case: Case) -> ModelProto:
    """The original without the nodes, tensors and value_info that a rewrite must take away."""
    result = ModelProto()
    result.CopyFrom(case.model)
    for place in reversed(places(result)):
        graph = place.graph
        drop(graph.node, case.gone.get(place.name, frozenset()))
        if isinstance(graph, GraphProto):
            drop(graph.initializer, case.stored.get(place.name, frozenset()))
        remade = {i.name for i in graph.value_info if i.name in ("y", "sizes") or "_y" in i.name}
        drop(graph.value_info, {i.name for i in graph.value_info} - made_in(graph) - remade)
    return result


def drop(items: object, names: "set[str] | frozenset[str]") -> None:
    for index in reversed(range(len(items))):  # type: ignore[arg-type]
        if items[index].name in names:  # type: ignore[index]
            del items[index]  # type: ignore[attr-defined]


def without_ours(model: ModelProto) -> ModelProto:
    result = ModelProto()
    result.CopyFrom(model)
    for owner in (result, *result.functions):
        kept = [o for o in owner.opset_import if o.domain != OURS]
        del owner.opset_import[:]
        owner.opset_import.extend(kept)
    assert [f.domain for f in result.functions].count(OURS) == 1
    drop(result.functions, {"SparseAttention"})
    for index in reversed(range(len(result.metadata_props))):
        if result.metadata_props[index].key.startswith(OURS):
            del result.metadata_props[index]
    for place in reversed(places(result)):
        drop(place.graph.node, {n.name for n in place.graph.node if n.name.startswith("sparsify/")})
    return result


@pytest.mark.parametrize("name", CASES)
def test_new_names_are_unique_in_the_file(name: str, tmp_path: Path) -> None:
    after = onnx.load(rewritten(CASES[name]().model, tmp_path, patterns=("window:size=8",)))
    own = [f for f in after.functions if f.domain == OURS]
    made = [
        name
        for place in places(after)
        if place.graph not in own
        for n in place.graph.node
        if n.name.startswith("sparsify/")
        for name in (n.name, *n.output)
        if name.startswith("sparsify/")
    ]
    assert len(made) == len(set(made)) > 0


@pytest.mark.parametrize("made", [function_called_twice, function_in_function])
def test_the_reference_runs_a_function_that_calls_the_operator(
    made: object, tmp_path: Path
) -> None:
    model = made().model  # type: ignore[operator]
    output = rewritten(model, tmp_path)
    feeds = plain_feeds()
    wanted = run(tmp_path / "m.onnx", feeds, library=False)
    (result,) = ReferenceEvaluator(onnx.load(output)).run(None, feeds)
    close(result, wanted["y"].astype(np.float64), 1e-4)


def test_value_info_of_a_function_goes_with_its_tensors(tmp_path: Path) -> None:
    case = function_called_twice()
    case.model.ir_version = 10
    decorate(case.model)
    after = onnx.load(rewritten(case.model, tmp_path))
    assert without_ours(after) == without_replaced(case)


def test_masks_are_written_once_for_each_scope(tmp_path: Path) -> None:
    """What a body makes cannot be read outside, nor in the other branch."""
    after = onnx.load(rewritten(mask_inside_and_outside().model, tmp_path))
    for name in ("", "If_0/then_branch"):
        graph = place_named(after, name).graph
        visible = set().union(*map(made_in, place_named(after, name).layers)) | {""}
        assert all(set(n.input) <= visible for n in graph.node)


def test_a_site_left_alone_keeps_what_it_needs(tmp_path: Path) -> None:
    """Only one branch is replaced: the scale outside stays for the other."""
    case = both_branches()
    scores = place_named(case.model, "If_0/else_branch").graph.node[2]
    scores.op_type = "Pow"
    output = tmp_path / "out.onnx"
    report = optimized(save(case.model, tmp_path), output)
    assert report.replaced == 1
    assert [t.name for t in onnx.load(output).graph.initializer] == ["c"]


def test_a_replaced_node_may_make_several_tensors() -> None:
    """It goes once, and its value_info stays where a new node makes the tensor again."""
    nodes = [node("Split", "q", "a b", axis=3, num_outputs=2), node("Add", "a b", "y")]
    model = build(nodes, QKV, Y, opset=18)
    model.graph.value_info.extend(helper.make_tensor_value_info(x, FLOAT, None) for x in "ab")
    new = [node("Identity", "k", "b"), node("Identity", "v", "a")]
    graft(model, {"": {"a": new}})
    assert [n.name for n in model.graph.node] == ["make_b", "make_a", "make_y"]
    assert len(model.graph.value_info) == 2


# What is refused ------------------------------------------------------------------------------


def test_probabilities_that_a_body_reads_are_shared(tmp_path: Path) -> None:
    parts = (
        body([node("ReduceSum", "p", "a", keepdims=1)], "a"),
        body([node("ReduceMax", "p", "b", keepdims=1)], "b"),
    )
    outputs = [*Y, ("z", FLOAT, ["x", "y", "z", "w"])]
    model = build([*attention(), choice(*parts, "z")], [*QKV, FLAG], outputs, [C])
    assert refused(model, tmp_path) == ["probabilities_shared"]


def refused(model: ModelProto, folder: Path) -> list[str]:
    findings = found(model, folder)
    assert findings.sites == ()
    return [refusal.code for refusal in findings.refusals]


def test_an_attention_that_ends_in_a_body_is_refused(tmp_path: Path) -> None:
    nodes = attention()
    parts = body([nodes.pop()], "y"), body([node("Neg", "q", "e")], "e")
    outputs = [("z", FLOAT, SHAPE)]
    model = build([*nodes, choice(*parts, "z")], [*QKV, FLAG], outputs, [C])
    assert refused(model, tmp_path) == ["scope_unsupported"]


def test_a_function_for_two_float_types_is_refused(tmp_path: Path) -> None:
    nodes = [n for n in attention() if n.name != "make_scaled"]
    nodes[2].input[0] = "raw"
    halves = [(f"h{name}", HALF, shape) for name, _, shape in QKV]
    calls = [call("Attend", "q k v", "y"), call("Attend", "hq hk hv", "hy")]
    model = build(calls, [*QKV, *halves], [*Y, ("hy", HALF, SHAPE)])
    assert refused(with_functions(model, function("Attend", nodes)), tmp_path) == ["types_unknown"]


def test_a_function_that_nobody_calls_is_refused(tmp_path: Path) -> None:
    nodes = [node("Constant", "", "c", value=C), *attention()]
    model = build([node("Relu", "q", "y")], QKV, Y)
    assert refused(with_functions(model, function("Attend", nodes)), tmp_path) == ["types_unknown"]


def test_a_half_function_is_replaced(tmp_path: Path) -> None:
    nodes = [n for n in attention() if n.name != "make_scaled"]
    nodes[2].input[0] = "raw"
    inputs = [(name, HALF, shape) for name, _, shape in QKV]
    model = build([call("Attend", "q k v", "y")], inputs, [("y", HALF, SHAPE)])
    with_functions(model, function("Attend", nodes))
    output = rewritten(model, tmp_path)
    feeds = {name: values.astype(np.float16) for name, values in plain_feeds().items()}
    wanted = run(tmp_path / "m.onnx", feeds, library=False)["y"].astype(np.float64)
    for result in both_ways(output, feeds):
        close(result["y"], wanted, 2e-2)


@pytest.mark.parametrize("values", [(0.25, 0.25), (0.25, 0.5)])
def test_a_scale_that_the_calls_give_is_refused(
    values: tuple[float, float], tmp_path: Path
) -> None:
    scale = node("Constant", "", "c")
    kind = AttributeProto.FLOAT
    scale.attribute.append(AttributeProto(name="value_float", type=kind, ref_attr_name="scale"))
    own = function("Attend", [scale, *attention()])
    own.attribute.append("scale")
    calls = [call("Attend", "q k v", f"y{i}", scale=x) for i, x in enumerate(values)]
    model = with_functions(build([*calls, node("Add", "y0 y1", "y")], QKV, Y), own)
    assert refused(model, tmp_path) in (["proof_failed"], ["scores_unknown"])


@pytest.mark.parametrize(
    ("own", "main", "codes"),
    [(16, 17, []), (17, 16, []), (18, 17, ["mixed_opset"]), (12, 17, ["mixed_opset"])],
)
def test_opsets_of_functions(own: int, main: int, codes: list[str], tmp_path: Path) -> None:
    """One body serves the file: a function may differ only where no operator does."""
    nodes = [node("Constant", "", "c", value=C), *attention()]
    model = build([call("Attend", "q k v", "y")], QKV, Y, opset=main)
    with_functions(model, function("Attend", nodes, own))
    if codes:
        assert refused(model, tmp_path) == codes
        return
    output = rewritten(model, tmp_path)
    wanted = run(tmp_path / "m.onnx", plain_feeds(), library=False)["y"].astype(np.float64)
    for result in both_ways(output, plain_feeds()):
        close(result["y"], wanted, 2e-5)


def test_a_main_graph_of_calls_alone_needs_no_opset(tmp_path: Path) -> None:
    nodes = [node("Constant", "", "c", value=C), *attention()]
    model = build([call("Attend", "q k v", "y")], QKV, Y)
    del model.opset_import[:]
    with_functions(model, function("Attend", nodes))
    assert len(found(model, tmp_path).sites) == 1


def test_sizes_that_differ_between_calls_are_not_mixed_up(tmp_path: Path) -> None:
    """In one call K has a batch of 1 that broadcasts; the function must stay as it is."""
    nodes = [node("Constant", "", "c", value=C), *attention()]
    calls = [call("Attend", "q k v", "one"), call("Attend", "q k1 v1", "two")]
    narrow = [(f"{name}1", FLOAT, [1, 4, "t", 16]) for name in "kv"]
    model = build([*calls, node("Add", "one two", "y")], [*QKV, *narrow], Y)
    codes = refused(with_functions(model, function("Attend", nodes)), tmp_path)
    assert codes == ["broadcast_unsupported"]


def test_a_file_of_ours_is_known_by_its_functions(tmp_path: Path) -> None:
    output = rewritten(function_called_twice().model, tmp_path)
    findings = find_sites(load(output))
    assert findings.sites == ()
    assert {refusal.code for refusal in findings.refusals} == {"already_sparse"}


# Skeletons ------------------------------------------------------------------------------------


def heavy(value: float, name: str = "inside") -> ModelProto:
    """Large tensors in a body's initializer, in its Constant, and in a function's Constant."""
    large = tensor("large", np.full(5000, value))
    nodes = [node("Constant", "", "more", value=large), node("Add", "large more", "sum")]
    nodes.append(node("Sub", "q q", "e", name=name))
    part = body(nodes, "e", stored=[large])
    own = function("Held", [node("Constant", "", "c", value=large), node("Neg", "q", "y")])
    called = call("Held", "q k v", "f")
    model = build([choice(part, body([called], "f"))], [*QKV, FLAG], Y)
    return with_functions(model, own)


def test_a_skeleton_holds_no_weights_at_any_level(tmp_path: Path) -> None:
    assert skeleton(heavy(1.0), tmp_path).ByteSize() < 4000 < 60000 < heavy(1.0).ByteSize()


def test_the_hash_knows_bodies_and_not_their_weights(tmp_path: Path) -> None:
    one, same, other = (
        load(save(heavy(*arguments), tmp_path)).graph_hash()
        for arguments in ((1.0,), (2.0,), (1.0, "renamed"))
    )
    assert one == same != other
