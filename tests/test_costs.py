"""What a model costs on devices: shares, break-even points, pictures, and bad words."""

import json
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from graphs import Form, model_of, save
from onnx import helper, numpy_helper

from sparsify import find_sites, load
from sparsify.cli import cli
from sparsify.costs import costs
from sparsify.errors import SparsifyError
from sparsify.model_work import rest_of, weight_sizes
from sparsify.options import numbers_between
from sparsify.predicted import GAIN
from sparsify.workload import Cost

RATE = 1e12
"""Multiply-adds a second of a machine that does nothing else."""

CALL = 1e-3
"""Seconds that choosing takes on it, an operator."""

FLAT = SimpleNamespace(
    name="flat",
    cost=lambda w: Cost(w.macs / RATE + w.selector.calls * CALL, w.macs, "compute"),
    dense=lambda w: Cost(w.macs / RATE, w.macs, "compute"),
)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """One layer of BERT-base: attention of 12 heads, 768 channels, and the weights beside it."""
    model = model_of(Form(heads=12, dim=64, value_dim=64))
    stored = {"qkv": (768, 3 * 768), "out": (768, 768), "up": (768, 3072), "down": (3072, 768)}
    tensor = "hidden"
    model.graph.input.append(helper.make_tensor_value_info(tensor, 1, ["b", "s", 768]))
    for name, size in stored.items():
        weight = numpy_helper.from_array(np.zeros(size, np.int8), name)
        model.graph.initializer.append(weight)
        model.graph.node.append(helper.make_node("Cast", [name], [f"{name}:f"], to=1))
        model.graph.node.append(helper.make_node("MatMul", ["hidden", f"{name}:f"], [f"{name}:y"]))
    return save(model, tmp_path_factory.mktemp("bert"))


def rows_of(path, lengths=(512,), densities=(0.1,), device=FLAT):
    loaded = load(path)
    return costs(loaded, find_sites(loaded).sites, [device], lengths, densities)


def test_weights_are_found_behind_casts(bert):
    assert sorted(weight_sizes(load(bert))) == [(768, 768), (768, 2304), (768, 3072), (3072, 768)]
    assert rest_of(load(bert), 10).macs == 10 * 12 * 768**2


def test_the_share_of_attention_is_length_over_six_widths_and_length(bert):
    """Per token and layer 12 D^2 multiply-adds in weights, 2 L D in attention."""
    for row in rows_of(bert, (128, 384, 512, 2048, 16384)):
        assert row.share == pytest.approx(row.length / (6 * 768 + row.length))
        assert row.energy_share == pytest.approx(row.share)


def test_sparse_time_is_the_share_and_the_choice(bert):
    (row,) = rows_of(bert, (1600,), (0.1, 0.5))
    for share, spent in zip(row.densities, row.sparse, strict=True):
        assert spent.seconds == pytest.approx(row.dense.seconds * share + 2 * CALL)


def test_selecting_pays_below_the_density_that_makes_up_for_the_choice(bert):
    (long,) = rows_of(bert, (16384,))
    assert long.pays_below == pytest.approx(1 - GAIN - 2 * CALL / long.dense.seconds, abs=0.002)
    (short,) = rows_of(bert, (64,))
    assert short.pays_below == 0


def test_a_device_that_tells_nothing_of_matrices_has_no_share(bert):
    device = SimpleNamespace(name="bare", cost=FLAT.cost)
    (row,) = rows_of(bert, device=device)
    assert row.rest is None
    assert row.share is None


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1k..8k", [1024, 2048, 4096, 8192]),
        ("1k..5k", [1024, 2048, 4096, 5120]),
        ("512,3k", [512, 3072]),
        ("0.05..0.3", [0.05, 0.1, 0.2, 0.3]),
        ("1", [1]),
    ],
)
def test_ranges_double_and_lists_are_lists(text, numbers):
    assert numbers_between(text, "--seq") == pytest.approx(numbers)


@pytest.mark.parametrize("text", ["", "many", "1k..", "-1", "0", "nan", "inf", "8k..1k"])
def test_words_that_are_no_numbers_are_one_clear_line(text):
    with pytest.raises(SparsifyError, match=r"--seq .*give"):
        numbers_between(text, "--seq")


def call(*words):
    return CliRunner().invoke(cli, ["cost", *map(str, words)])


def test_the_command_prints_a_table_or_data(bert):
    table = call(bert, "--device", "a100,h100", "--seq", "1k..2k")
    assert table.exit_code == 0
    assert "pays" in table.output
    data = json.loads(call(bert, "--device", "h100", "--seq", "4k", "--json").output)
    assert [(row["device"], row["length"]) for row in data] == [("h100", 4096)]
    assert 0 < data[0]["share"] < 1


def test_inspect_adds_the_share_of_attention_on_a_device(bert):
    words = ["inspect", str(bert), "--device", "h100", "--seq", "4k,8k"]
    table = CliRunner().invoke(cli, words)
    assert table.exit_code == 0
    assert "pays" in table.output
    data = json.loads(CliRunner().invoke(cli, [*words, "--json"]).output)
    assert [row["length"] for row in data["costs"]] == [4096, 8192]
    assert data["costs"][0]["share"] < data["costs"][1]["share"]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_command_draws(bert, tmp_path, suffix):
    file = tmp_path / f"cost.{suffix}"
    assert call(bert, "--device", "l4", "-o", file).exit_code == 0
    if suffix == "svg":
        assert ElementTree.fromstring(file.read_text(encoding="utf-8")).tag.endswith("svg")
    else:
        assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--density", "2"), "density 2: give a number above 0, at most 1"),
        (("--seq", "4k..1k"), "give the smaller number first"),
        (("--device", "h10"), "did you mean 'h100'"),
        (("--device", "h100", "-o", "x.gif"), "draws .svg or .png"),
        (("--device", "h100", "-o", "no/such/folder/x.svg"), "cannot be written"),
    ],
)
def test_nonsense_is_one_clear_line(bert, words, says):
    result = call(bert, "--device", "h100", *words)
    assert result.exit_code == 1
    assert says in str(result.exception or result.output)


def test_a_model_without_attention_is_told(tmp_path):
    x = helper.make_tensor_value_info("x", 1, ["n"])
    y = helper.make_tensor_value_info("y", 1, ["n"])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    path = save(helper.make_model(graph), tmp_path)
    with pytest.raises(SparsifyError, match="no attention was found"):
        rows_of(path)


def test_the_devices_are_listed_and_the_host_measured_again(monkeypatch):
    monkeypatch.setattr("sparsify_hw.host.measured", lambda cores: None)
    monkeypatch.setattr("sparsify_hw.host.keep", lambda found, cores: "host.json")
    listed = CliRunner().invoke(cli, ["devices"]).output
    assert "h100" in listed
    assert "host.json" not in listed
    assert "host.json" in CliRunner().invoke(cli, ["devices", "--calibrate"]).output
