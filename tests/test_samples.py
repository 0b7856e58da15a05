"""The sample plugins: small, installable, and found by the command line once they are installed."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from graphs import Form, model_of, save
from onnx import TensorProto, helper

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
PACKAGES = ("custom_pattern", "custom_matcher", "custom_device")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the three packages installed in it, to be put on the path."""
    version = importlib.metadata.version("setuptools")
    if int(version.split(".")[0]) < 71:
        pytest.skip(f"setuptools {version} cannot build wheels by itself")
    folder = tmp_path_factory.mktemp("samples")
    sources = [shutil.copytree(SAMPLES / name, folder / name) for name in PACKAGES]
    options = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", folder / "site"]
    command = [sys.executable, "-m", "pip", "install", *options, *sources]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "site"


def sparsify(site: Path, *words: str | Path) -> str:
    command = [sys.executable, "-m", "sparsify", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "200"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def spelled_out():
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "c"], ["scaled"]),
        helper.make_node("Exp", ["scaled"], ["e"]),
        helper.make_node("ReduceSum", ["e", "last"], ["total"], keepdims=1),
        helper.make_node("Div", ["e", "total"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 2, length, 8])
        for name, length in (("q", "s"), ("k", "t"), ("v", "t"), ("y", "s"))
    }
    stored = [
        helper.make_tensor("c", TensorProto.FLOAT, [], [0.25]),
        helper.make_tensor("last", TensorProto.INT64, [1], [-1]),
    ]
    inputs = [values[name] for name in "qkv"]
    graph = helper.make_graph(nodes, "spelled out", inputs, [values["y"]], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_sample_plugin_is_small(name):
    (module,) = (SAMPLES / name).glob("*.py")
    assert len(module.read_text().splitlines()) <= 50


def test_all_are_listed_with_the_distribution_they_come_from(installed):
    text = sparsify(installed, "plugins")
    for name in ("sparsify-strided", "sparsify-spelled-out", "sparsify-roofline"):
        assert name in text


def test_the_pattern_draws_and_converts(installed, tmp_path):
    assert "#" in sparsify(installed, "show", "strided:stride=8")
    model = save(model_of(Form()), tmp_path)
    text = sparsify(installed, model, "-o", tmp_path / "o.onnx", "--pattern", "strided:stride=8")
    assert "1 of 1 attention site replaced" in text


def test_the_matcher_finds_what_no_other_does_and_it_is_proved(installed, tmp_path):
    model = save(spelled_out(), tmp_path)
    text = sparsify(installed, model, "-o", tmp_path / "o.onnx")
    assert "1 of 1 attention site replaced" in text
    assert "1 attention site found" in sparsify(installed, "inspect", model)


def test_the_device_is_asked(installed, tmp_path):
    model = save(model_of(Form()), tmp_path)
    words = ("--pattern", "mean_key:density=0.5", "--device", "roofline")
    assert "mean_key:density=0.5" in sparsify(installed, "plan", model, *words)
