"""Plans as data: made, written, read back, edited by hand, and refused where they do not fit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from graphs import (
    FLOAT,
    QKV,
    C,
    Form,
    Y,
    build,
    model_of,
    node,
    plain_model,
    plain_nodes,
    save,
    tensor,
)
from onnx import ModelProto
from running import OFF

from sparsify import (
    Decision,
    Plan,
    Request,
    SparsifyError,
    api,
    find_sites,
    load,
    make_plan,
    read_plan,
)
from sparsify.devices import device_named
from sparsify.spec import PatternSpec, parse_spec


def two_layers(length: int | str = "t") -> ModelProto:
    nodes = [
        *plain_nodes(),
        node("MatMul", "y kt", "raw2"),
        node("Softmax", "raw2", "p2", name="encoder/layer.1/softmax", axis=-1),
        node("MatMul", "p2 v", "z"),
    ]
    nodes[3].name = "encoder/layer.0/softmax"
    inputs = [(name, FLOAT, ["b", 4, length, 16]) for name in "qkv"]
    return build(nodes, inputs, [("z", FLOAT, ["b", 4, length, 16])], [C])


def plan_of(model: ModelProto, folder: Path, *patterns: str, **named: Any) -> Plan:
    loaded = load(save(model, folder))
    request = Request(tuple(map(parse_spec, patterns)), **named)
    return make_plan(loaded, find_sites(loaded), request)


def test_without_patterns_every_site_is_exact(tmp_path: Path) -> None:
    plan = plan_of(two_layers(), tmp_path)
    assert [d.site for d in plan.decisions] == [
        "encoder/layer.0/softmax",
        "encoder/layer.1/softmax",
    ]
    for decision in plan.decisions:
        assert (decision.status, decision.grade, decision.pattern) == ("replaced", "exact", None)
        assert (decision.residual, decision.density) == ("none", 1.0)


@pytest.mark.parametrize(
    "patterns", [(), ("window:size=64",), ("*0*=diagonal", "mean_key:density=0.25/0.5/0.5/1")]
)
def test_json_reads_back_unchanged(patterns: tuple[str, ...], tmp_path: Path) -> None:
    plan = plan_of(two_layers(), tmp_path, *patterns, max_length=512)
    assert Plan.from_json(plan.to_json()) == plan
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    assert read_plan(tmp_path / "plan.json") == plan


def test_the_last_pattern_that_fits_holds(tmp_path: Path) -> None:
    plan = plan_of(two_layers(), tmp_path, "window:size=64", "*layer.1*=diagonal:q_block=32")
    assert [d.pattern for d in plan.decisions] == ["window:size=64", "diagonal:q_block=32"]
    assert {d.grade for d in plan.decisions} == {"requested"}
    plan = plan_of(two_layers(), tmp_path, "*layer.1*=diagonal", "window")
    assert [d.pattern for d in plan.decisions] == ["window", "window"]


def test_a_site_that_no_pattern_fits_stays_exact(tmp_path: Path) -> None:
    plan = plan_of(two_layers(), tmp_path, "*layer.0*=window")
    assert [d.grade for d in plan.decisions] == ["requested", "exact"]


def test_a_glob_that_fits_no_site_is_an_error_that_names_sites(tmp_path: Path) -> None:
    with pytest.raises(SparsifyError, match=r"no site matches 'decoder\*'.*encoder/layer"):
        plan_of(two_layers(), tmp_path, "decoder*=window")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("windw", "did you mean 'window'"),
        ("window:siz=3", "did you mean 'size'"),
        ("window:size=big", "size='big' is not int"),
        ("window:size=-1", "size=-1"),
        ("window:size", "is not key=value"),
        ("mean_key:density=2", "density=2"),
        ("mean_key", "give exactly one"),
        ("=window", "is not NAME"),
        ("", "is not NAME"),
        (":size=3", "is not NAME"),
        ("zzz", "known are"),
    ],
)
def test_bad_patterns(pattern: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SparsifyError, match=said):
        plan_of(plain_model(), tmp_path, pattern)


def test_specs_as_text() -> None:
    spec = parse_spec("enc/*=mean_key:density=0.1/0.2,k_block=16")
    assert spec == PatternSpec("enc/*", "mean_key", (("density", "0.1/0.2"), ("k_block", "16")))
    assert str(spec) == "mean_key:density=0.1/0.2,k_block=16"
    assert parse_spec(str(spec)) == replace(spec, sites="*")
    assert parse_spec("window").matches("anything/at all")


def test_residuals(tmp_path: Path) -> None:
    plan = plan_of(two_layers(), tmp_path, "*0*=window", residual="mean")
    assert [d.residual for d in plan.decisions] == ["mean", "none"]


def test_iso_gives_way_to_mean_under_a_softcap(tmp_path: Path) -> None:
    nodes = plain_nodes(scores="capped")
    nodes[3:3] = [
        node("Div", "scaled cap", "small"),
        node("Tanh", "small", "bent"),
        node("Mul", "bent cap", "capped"),
    ]
    model = build(nodes, QKV, Y, [C, tensor("cap", 5.0)])
    (decision,) = plan_of(model, tmp_path, "window", residual="iso").decisions
    assert decision.residual == "mean"
    assert "iso" in decision.reason


def test_density_is_told_where_lengths_are_fixed(tmp_path: Path) -> None:
    (first, _) = plan_of(two_layers(256), tmp_path, "diagonal").decisions
    assert first.density == 0.25
    (first, _) = plan_of(two_layers(), tmp_path, "diagonal").decisions
    assert first.density is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", "3", '{"version": 1}', '{"version": 1, "decisions": 3, "graph": ""}'],
)
def test_what_is_no_plan(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(SparsifyError, match=r"plan\.json: not a plan"):
        read_plan(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SparsifyError, match="cannot be read"):
        read_plan(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SparsifyError, match=r"binary\.json"):
        read_plan(tmp_path / "binary.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "maybe"),
        ("status", None),
        ("grade", "best"),
        ("residual", "some"),
        ("pattern", 5),
        ("pattern", "nonesuch"),
        ("pattern", "window:siz=3"),
        ("site", "elsewhere"),
        ("site", 3),
        ("site", ["a"]),
        ("scope", "elsewhere"),
        ("scope", [1]),
        ("density", "much"),
        ("unknown", 1),
    ],
)
def test_edits_that_make_no_sense(field: str, value: object, tmp_path: Path) -> None:
    path = save(plain_model(), tmp_path)
    data = json.loads(plan_of(plain_model(), tmp_path).to_json())
    data["decisions"][0][field] = value
    with pytest.raises(SparsifyError):
        api.apply(path, Plan.from_json(json.dumps(data)), tmp_path / "o.onnx", trial=OFF)
    assert not (tmp_path / "o.onnx").exists()


@pytest.mark.parametrize(
    ("field", "value"), [("version", 2), ("version", "1"), ("max_length", "long"), ("graph", 3)]
)
def test_heads_that_make_no_sense(field: str, value: object, tmp_path: Path) -> None:
    path = save(plain_model(), tmp_path)
    data = json.loads(plan_of(plain_model(), tmp_path).to_json())
    data[field] = value
    with pytest.raises(SparsifyError):
        api.apply(path, Plan.from_json(json.dumps(data)), tmp_path / "o.onnx", trial=OFF)


def test_edits_that_make_sense(tmp_path: Path) -> None:
    path = save(two_layers(), tmp_path)
    data = json.loads(plan_of(two_layers(), tmp_path).to_json())
    data["decisions"][0] |= {"status": "kept", "grade": None}
    data["decisions"][1] |= {"pattern": "window:size=32", "grade": "requested", "residual": "mean"}
    report = api.apply(path, Plan.from_json(json.dumps(data)), tmp_path / "o.onnx", trial=OFF)
    assert (report.found, report.replaced) == (2, 1)
    (operator,) = [
        n for n in load(tmp_path / "o.onnx").proto.graph.node if n.domain == "ai.sparsify"
    ]
    assert {a.name: a.i for a in operator.attribute}["residual"] == 1


def test_a_plan_of_another_graph_is_refused(tmp_path: Path) -> None:
    plan = plan_of(plain_model(), tmp_path)
    path = save(model_of(Form(scale="split")), tmp_path, "other.onnx")
    with pytest.raises(SparsifyError, match="another graph"):
        api.apply(path, plan, tmp_path / "o.onnx", trial=OFF)


def test_weights_are_no_part_of_the_graph(tmp_path: Path) -> None:
    """A plan holds for retrained weights, and for the same weights stored in another way."""
    hashes = set()
    for seed in (0, 1):
        nodes = [node("MatMul", "x w", "q"), *plain_nodes()]
        weight = tensor("w", [[seed] * 64] * 64)
        inputs = [("x", FLOAT, ["b", 4, "s", 64]), *((n, FLOAT, ["b", 4, "t", 64]) for n in "kv")]
        model = build(nodes, inputs, Y, [C, weight])
        hashes.add(load(save(model, tmp_path)).graph_hash())
    assert len(hashes) == 1


def test_a_plan_says_what_the_device_told(tmp_path: Path) -> None:
    """Lengths that the graph leaves open are those of `max_length`; without it, none is asked."""
    found = load(save(plain_model(), tmp_path))
    sites = find_sites(found)
    spec = (parse_spec("mean_key:density=0.1"),)
    h100 = device_named("h100")
    plan = make_plan(found, sites, Request(spec, max_length=16384), h100)
    told = plan.decisions[0].predicted
    assert told is not None
    assert (told.device, told.q_length, told.k_length) == ("h100", 16384, 16384)
    assert 0 < told.seconds < told.exact_seconds
    assert Plan.from_json(plan.to_json()) == plan
    (short,) = make_plan(found, sites, Request(spec, max_length=64), h100).decisions
    assert short.grade == "exact"
    assert short.predicted is not None
    assert not short.predicted.pays
    assert make_plan(found, sites, Request(spec), h100).decisions[0].predicted is None


@pytest.mark.parametrize(
    "told",
    [
        {"device": "h100", "q_length": 8, "k_length": 8, "seconds": "1ms", "exact_seconds": 1.0},
        {"device": "h100", "q_length": 8.5, "k_length": 8, "seconds": 1.0, "exact_seconds": 1.0},
        {"device": "h100", "seconds": 1.0},
        3,
    ],
)
def test_nonsense_that_a_device_is_said_to_have_told(told: Any, tmp_path: Path) -> None:
    data = json.loads(plan_of(plain_model(), tmp_path).to_json())
    data["decisions"][0]["predicted"] = told
    with pytest.raises(SparsifyError, match="not a plan"):
        Plan.from_json(json.dumps(data))


def test_a_grid_that_no_memory_holds_is_one_clear_line(tmp_path: Path) -> None:
    found = load(save(plain_model(), tmp_path))
    request = Request((parse_spec("window:size=64"),), max_length=10**8)
    with pytest.raises(SparsifyError, match="name a shorter --max-length"):
        make_plan(found, find_sites(found), request, device_named("h100"))


def test_decisions_are_plain_values(tmp_path: Path) -> None:
    (decision,) = plan_of(plain_model(), tmp_path).decisions
    assert Decision(**json.loads(json.dumps(vars(decision)))) == decision
