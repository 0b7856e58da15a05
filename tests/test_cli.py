"""The command line: every command, its exit code, and one line for every kind of bad input."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from graphs import (
    FLOAT,
    QKV,
    C,
    Form,
    Y,
    bfloat16_model,
    build,
    model_of,
    node,
    plain_feeds,
    plain_model,
    plain_nodes,
    save,
)
from onnx import TensorProto, helper

from sparsify.cli import cli
from sparsify.errors import SparsifyError

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


def call(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def ok(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def error(*words: object) -> str:
    """The sentence of the error that `main` prints as one line, with exit code 1."""
    result = call(*words)
    assert isinstance(result.exception, SparsifyError), (result.output, result.exception)
    return str(result.exception)


def usage(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 2, (result.output, result.exception)
    return result.output


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(plain_model(), tmp_path)


@pytest.fixture
def decoy(tmp_path: Path) -> Path:
    """A softmax without values, and one over the wrong axis."""
    nodes = [
        *plain_nodes()[:3],
        node("Softmax", "scaled", "p", name="no_values", axis=-1),
        node("ReduceMax", "p", "z", axes=[-1]),
        node("Softmax", "scaled", "p2", name="wrong_axis", axis=1),
        node("MatMul", "p2 v", "y"),
    ]
    outputs = [*Y, ("z", FLOAT, ["b", 4, "s", 1])]
    return save(build(nodes, QKV, outputs, [C]), tmp_path, "decoy.onnx")


# optimize --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [(), ("optimize",)])
def test_a_model_alone_means_optimize(command: tuple[str, ...], model: Path) -> None:
    output = model.with_name("o.onnx")
    said = ok(*command, model, "-o", output)
    assert "1 of 1 attention site replaced" in said
    assert "relative L2" in said
    onnx.checker.check_model(output)


def test_options_may_stand_before_the_model(model: Path) -> None:
    output = model.with_name("o.onnx")
    assert ok("-q", "-o", output, model) == ""
    assert output.is_file()


def test_an_output_or_a_dry_run_is_asked_for(model: Path) -> None:
    assert "-o OUT" in usage(model)


def test_a_dry_run_leaves_no_file(model: Path) -> None:
    before = set(model.parent.iterdir())
    said = ok(model, "--dry-run", "-o", model.with_name("o.onnx"))
    assert "1 of 1" in said
    assert "wrote" not in said
    assert set(model.parent.iterdir()) == before


def test_nothing_to_replace_is_exit_code_3(decoy: Path) -> None:
    output = decoy.with_name("o.onnx")
    result = call(decoy, "-o", output)
    assert result.exit_code == 3
    for word in ("0 of 0", "softmax_axis", "not_attention", "no_values", "wrong_axis"):
        assert word in result.output
    assert not output.exists()
    assert call(decoy, "--dry-run").exit_code == 3


def test_allow_noop_writes_the_same_graph(decoy: Path) -> None:
    output = decoy.with_name("o.onnx")
    ok(decoy, "-o", output, "--allow-noop")
    assert onnx.load(output).graph == onnx.load(decoy).graph


@pytest.mark.parametrize(("require", "code"), [("0", 0), ("1", 0), ("all", 0), ("2", 3), ("99", 3)])
def test_require(require: str, code: int, model: Path) -> None:
    output = model.with_name("o.onnx")
    assert call(model, "-o", output, "--require", require).exit_code == code
    assert output.exists() == (code == 0)


@pytest.mark.parametrize("require", ["0", "1", "all"])
def test_require_without_any_attention(require: str, decoy: Path) -> None:
    code = call(decoy, "-o", decoy.with_name("o.onnx"), "--require", require).exit_code
    assert code == (0 if require == "0" else 3)


@pytest.mark.parametrize("require", ["some", "-1", "1.5", "²", ""])
def test_a_requirement_that_is_no_number(require: str, model: Path) -> None:
    usage(model, "-o", model.with_name("o.onnx"), "--require", require)


def test_reports(model: Path) -> None:
    first, second = model.with_name("a.json"), model.with_name("b.json")
    output = model.with_name("o.onnx")
    ok(model, "-o", output, "--report", first, "--report", second, "-q")
    data = json.loads(first.read_text(encoding="utf-8"))
    assert first.read_bytes() == second.read_bytes()
    assert list(data) == [
        "version",
        "model",
        "output",
        "found",
        "replaced",
        "sites",
        "refusals",
        "verify",
        "seconds",
    ]
    assert (data["version"], data["found"], data["replaced"]) == (1, 1, 1)
    assert (data["model"], data["output"]) == (str(model), str(output))
    assert list(data["sites"][0]) == [
        "name",
        "status",
        "grade",
        "pattern",
        "residual",
        "density",
        "reason",
        "predicted",
    ]
    assert data["verify"]["inputs"] == "random"
    assert set(data["verify"]["outputs"][0]) >= {"name", "max_abs", "rel_l2", "cosine"}
    assert data["verify"]["outputs"][0]["rel_l2"] < 1e-5


def test_a_report_of_nothing_replaced(decoy: Path) -> None:
    report = decoy.with_name("r.json")
    assert call(decoy, "-o", decoy.with_name("o.onnx"), "--report", report).exit_code == 3
    data = json.loads(report.read_text(encoding="utf-8"))
    assert (data["output"], data["replaced"]) == (None, 0)
    assert {r["code"] for r in data["refusals"]} == {"softmax_axis", "not_attention"}
    assert all(set(r) == {"code", "reason", "scope", "nodes"} for r in data["refusals"])


def test_a_report_of_another_kind_is_refused_before_any_work(model: Path) -> None:
    said = error(model, "-o", model.with_name("o.onnx"), "--report", model.with_name("r.txt"))
    assert ".json" in said
    assert not model.with_name("o.onnx").exists()
    error(model, "-o", model.with_name("o.onnx"), "--report", model.parent / "no" / "r.json")


def test_data_to_verify_on(model: Path) -> None:
    np.savez(model.with_name("d.npz"), **plain_feeds())
    report = model.with_name("r.json")
    ok(
        model,
        "-o",
        model.with_name("o.onnx"),
        "--data",
        model.with_name("d.npz"),
        "--report",
        report,
    )
    verified = json.loads(report.read_text())["verify"]
    assert verified["inputs"] == "data"
    assert min(verified["seconds"]["original"], verified["seconds"]["changed"]) > 0


def test_bad_data(model: Path) -> None:
    def fails(**arrays: np.ndarray) -> str:
        path = model.with_name("d.npz")
        np.savez(path, **arrays)
        said = error(model, "-o", model.with_name("o.onnx"), "--data", path)
        assert not model.with_name("o.onnx").exists()
        return said

    feeds = plain_feeds()
    assert "'v'" in fails(q=feeds["q"], k=feeds["k"])
    assert "'extra'" in fails(**feeds, extra=feeds["q"])
    assert "float64" in fails(**{**feeds, "q": feeds["q"].astype(np.float64)})
    assert "shape" in fails(**{**feeds, "q": feeds["q"][0]})
    fails(**{**feeds, "q": np.array([{}], dtype=object)})
    model.with_name("t.npz").write_text("no archive")
    assert "t.npz" in error(
        model, "-o", model.with_name("o.onnx"), "--data", model.with_name("t.npz")
    )


def test_dims_and_shapes(model: Path) -> None:
    output = model.with_name("o.onnx")
    ok(model, "-o", output, "--dim", "s=7", "--dim", "t=9", "--shape", "q=1x4x7x16", "--dim", "b=1")
    for option, value, said in (
        ("--dim", "z=3", "'z'"),
        ("--dim", "s", "NAME=SIZE"),
        ("--dim", "s=0", "NAME=SIZE"),
        ("--dim", "s=²", "NAME=SIZE"),
        ("--shape", "q=axb", "INPUT=SIZE"),
        ("--shape", "q=²x2", "INPUT=SIZE"),
        ("--shape", "q=1x2", "4 dimensions"),
        ("--shape", "w=1x2x3x4", "'w'"),
    ):
        assert said in error(model, "-o", output, option, value)


def test_no_verify(model: Path) -> None:
    report = model.with_name("r.json")
    ok(model, "-o", model.with_name("o.onnx"), "--no-verify", "--report", report)
    assert json.loads(report.read_text())["verify"]["skipped"] == "not asked for"


def test_options_that_exclude_each_other(model: Path) -> None:
    output = model.with_name("o.onnx")
    usage(model, "-o", output, "--exact", "--pattern", "window")
    usage(model, "-o", output, "--residual", "mean")
    usage(model, "-o", output, "--residual", "other", "--pattern", "window")
    usage(model, "-o", output, "--weights", "link")
    ok(model, "-o", output, "--exact", "--no-library")


def test_a_pattern_that_was_named(model: Path) -> None:
    output, report = model.with_name("o.onnx"), model.with_name("r.json")
    ok(model, "-o", output, "--pattern", "window:size=16,q_block=16,k_block=16", "--report", report)
    (site,) = json.loads(report.read_text())["sites"]
    assert site["grade"] == "requested"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("windw", "did you mean"), ("window:siz=1", "did you mean"), ("no*=window", "no site")],
)
def test_a_pattern_that_does_not_exist(pattern: str, said: str, model: Path) -> None:
    assert said in error(model, "-o", model.with_name("o.onnx"), "--pattern", pattern)


def test_a_device_that_does_not_exist(model: Path) -> None:
    assert "did you mean 'host'" in error(
        model, "-o", model.with_name("o.onnx"), "--device", "hots"
    )


# The other commands ----------------------------------------------------------------------------


def test_inspect(model: Path, decoy: Path) -> None:
    assert "1 attention site found" in ok("inspect", model)
    data = json.loads(ok("inspect", model, "--json"))
    assert list(data) == ["model", "sites", "refusals"]
    (site,) = data["sites"]
    assert 0 <= site.pop("proof") < 1e-5
    assert [site] == [
        {
            "name": "softmax",
            "scope": "",
            "matcher": "softmax",
            "q_heads": 4,
            "kv_heads": 4,
            "head_dim": 16,
            "scale": 0.25,
            "causal": False,
            "left_window": -1,
            "right_window": -1,
            "bottom_right": False,
            "softcap": 0.0,
            "sinks": False,
            "mask": None,
            "notes": [],
            "nodes": ["make_raw", "make_scaled", "softmax", "make_y"],
        }
    ]
    refusals = json.loads(ok("inspect", decoy, "--json"))["refusals"]
    assert {r["code"] for r in refusals} == {"softmax_axis", "not_attention"}


def test_explain(model: Path) -> None:
    text = ok("inspect", model, "--explain", "softmax")
    assert "softmax(0.25 * Q K^T) V" in text
    assert "largest error" in text
    for name in ("make_raw", "make_scaled", "make_y"):
        assert name in text
    assert "did you mean 'softmax'?" in error("inspect", model, "--explain", "softmx")


def test_plan_and_apply(model: Path) -> None:
    plan, output = model.with_name("plan.json"), model.with_name("o.onnx")
    ok("plan", model, "--pattern", "window:size=16", "-o", plan)
    ok("apply", model, plan, "-o", output)
    assert output.is_file()
    assert "exact" in ok("plan", model)


def test_apply_refuses_another_model(model: Path) -> None:
    plan = model.with_name("plan.json")
    ok("plan", model, "-o", plan)
    other = save(model_of(Form(scale="split")), model.parent, "other.onnx")
    assert "another graph" in error("apply", other, plan, "-o", model.with_name("o.onnx"))
    assert not model.with_name("o.onnx").exists()


@pytest.mark.parametrize("command", ["plan", "--report"])
def test_the_model_is_not_overwritten_by_a_plan_or_a_report(command: str, tmp_path: Path) -> None:
    model = save(plain_model(), tmp_path, "m.json")
    before = model.read_bytes()
    if command == "plan":
        error("plan", model, "-o", model)
    else:
        error(model, "-o", tmp_path / "o.onnx", "--report", model)
    assert model.read_bytes() == before


def test_verify(model: Path) -> None:
    output = model.with_name("o.onnx")
    ok(model, "-o", output)
    for library in ((), ("--no-library",)):
        said = ok("verify", model, output, "--dim", "s=9", *library)
        assert "relative L2" in said
        assert "a run on these inputs took" in said
    other = plain_model()
    other.graph.node[-1].output[0] = other.graph.output[0].name = "w"
    path = save(other, model.parent, "other.onnx")
    assert "'y'" in error("verify", model, path, "--dim", "s=9", "--dim", "t=9")


def test_bench(model: Path) -> None:
    output = model.with_name("o.onnx")
    ok(model, "-o", output, "-q")
    words = ("--pairs", 1, "--threads", 1, "--dim", "s=9", "--dim", "t=9")
    assert "o.onnx" in ok("bench", model, output, *words)


def test_show(tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    said = ok("show", "window:size=64", "--length", 512, "-o", picture)
    assert "#" in said
    assert picture.read_text().startswith("<svg")
    assert "did you mean" in error("show", "windw")
    assert "cannot be written" in error("show", "window", "-o", tmp_path)


def test_plugins_and_doctor() -> None:
    said = ok("plugins")
    for word in ("softmax", "onnx_attention", "window", "SparseAttention", "cpu", "host"):
        assert word in said
    assert "onnxruntime" in call("doctor").output


@pytest.mark.parametrize(
    "command",
    ["optimize", "inspect", "plan", "apply", "verify", "bench", "show", "plugins", "doctor"],
)
def test_every_command_has_help(command: str) -> None:
    assert "Usage:" in ok(command, "--help")


# Bad input -----------------------------------------------------------------------------------


def bad_files() -> dict[str, tuple[bytes, str]]:
    whole = plain_model().SerializeToString()
    return {
        "lfs.onnx": (LFS, "git lfs pull"),
        "half.onnx": (whole[: len(whole) // 2], "cut short"),
        "empty.onnx": (b"", "0 bytes"),
        "page.onnx": (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        "page2.onnx": (b"<html><body>404</body></html>", "HTML"),
        "torch.onnx": (b"PK\x03\x04" + bytes(200), "zip"),
        "random.onnx": (bytes(np.random.default_rng(0).bytes(4000)), "ONNX"),
        "text.onnx": (b"hello, this is only a text\n", "ONNX"),
        "zeros.onnx": (bytes(1000), "ONNX"),
    }


@pytest.mark.parametrize("name", bad_files())
@pytest.mark.parametrize("command", ["optimize", "inspect", "plan", "verify"])
def test_files_that_are_no_model(name: str, command: str, tmp_path: Path) -> None:
    data, said = bad_files()[name]
    (tmp_path / name).write_bytes(data)
    more = {"optimize": ["-o", tmp_path / "o.onnx"], "verify": [tmp_path / name]}.get(command, [])
    sentence = error(command, tmp_path / name, *more)
    assert sentence.startswith(str(tmp_path / name))
    assert said in sentence
    assert "\n" not in sentence
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_paths_that_are_no_file(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    assert "is a directory" in error(tmp_path, "-o", output)
    assert "no such file" in error(tmp_path / "none.onnx", "-o", output)
    assert "is a directory" in error(model, "-o", tmp_path)
    assert "does not exist" in error(model, "-o", tmp_path / "none" / "o.onnx")
    assert not output.exists()


def test_an_opset_from_the_future(tmp_path: Path) -> None:
    model = plain_model()
    model.opset_import[0].version = 99
    path = save(model, tmp_path)
    result = call(path, "-o", tmp_path / "o.onnx")
    assert result.exit_code in (1, 3)
    assert isinstance(result.exception, SparsifyError | SystemExit)
    assert not (tmp_path / "o.onnx").exists()


def test_a_graph_that_contradicts_itself(tmp_path: Path) -> None:
    nodes = plain_nodes()
    nodes[0] = node("Transpose", "nowhere", "kt", perm=[0, 1, 3, 2])
    path = save(build(nodes, QKV, Y, [C]), tmp_path)
    result = call(path, "-o", tmp_path / "o.onnx")
    assert isinstance(result.exception, SparsifyError | SystemExit)
    assert result.exit_code in (1, 3)


def test_inputs_that_are_no_tensors(tmp_path: Path) -> None:
    nodes = [*plain_nodes(), node("SequenceLength", "list", "z")]
    model = build(nodes, QKV, [*Y, ("z", TensorProto.INT64, [])], [C])
    model.graph.input.append(helper.make_tensor_sequence_value_info("list", FLOAT, None))
    path = save(model, tmp_path)
    result = call(path, "-o", tmp_path / "o.onnx")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "not verified" in result.output


@pytest.mark.parametrize(
    "name", ["a b.onnx", "模型.onnx", "🦙 注意.onnx", "-dash.onnx", "[x].onnx"]
)
def test_names_of_every_kind(name: str, tmp_path: Path) -> None:
    folder = tmp_path / f"dir {name}"
    folder.mkdir()
    path = save(plain_model(), folder, name)
    report = folder / "r.json"
    said = ok("optimize", "-o", folder / f"out {name}", "--report", report, "--", path)
    assert "1 of 1" in said
    assert json.loads(report.read_text(encoding="utf-8"))["model"] == str(path)


def test_markup_in_names_is_printed_as_it_is(tmp_path: Path) -> None:
    model = plain_model()
    model.graph.node[3].name = "[red]x[/red][/]"
    path = save(model, tmp_path)
    assert "[red]x[/red][/]" in json.loads(ok("inspect", path, "--json"))["sites"][0]["name"]
    assert "[red]" in ok("inspect", path)
    ok(path, "-o", tmp_path / "o.onnx")


# The process --------------------------------------------------------------------------------------


def process(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sparsify", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_error_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = process(tmp_path / "none.onnx", "-o", tmp_path / "o.onnx")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")


def test_json_on_standard_output_is_only_json(tmp_path: Path) -> None:
    """Also for a model with a type that numpy does not know."""
    model = bfloat16_model()
    done = process("inspect", save(model, tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["refusals"]) + len(found["sites"]) == 1
