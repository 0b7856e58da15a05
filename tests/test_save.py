"""Weights beside the model: copied or referred to, never lost, never doubled, never overwritten."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import (
    FLOAT,
    QKV,
    Array,
    C,
    Form,
    build,
    model_of,
    node,
    plain_model,
    plain_nodes,
    save,
    tensor,
)
from onnx import ModelProto, TensorProto, helper
from onnx.external_data_helper import set_external_data
from running import OFF, both_ways, close, run

from sparsify import SparsifyError, api


def projected() -> ModelProto:
    """Two projections of 16 x 16 and a table of 64 x 64 that a second node shares (tied)."""
    rng = np.random.default_rng(0)
    nodes = [
        node("MatMul", "x wq", "q"),
        *plain_nodes(),
        node("MatMul", "y wo", "z"),
        node("MatMul", "z wq", "out"),
    ]
    stored = [tensor(name, rng.standard_normal((16, 16))) for name in ("wq", "wo")]
    inputs = [("x", FLOAT, ["b", 4, "s", 16]), *QKV[1:]]
    return build(nodes, inputs, [("out", FLOAT, ["b", 4, "s", 16])], [C, *stored])


def feeds() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 4, 20, 16), "k": (2, 4, 24, 16), "v": (2, 4, 24, 16)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def save_external(folder: Path, locations: Sequence[str] = ("m.data", "m.data")) -> Path:
    """The projected model with `wq` and `wo` in data files, some bytes around each tensor."""
    folder.mkdir(parents=True, exist_ok=True)
    model = projected()
    for location in set(locations):
        (folder / location).parent.mkdir(parents=True, exist_ok=True)
        (folder / location).write_bytes(b"other bytes, 32 of them in all.." * 2)
    for kept, location in zip(model.graph.initializer[1:], locations, strict=True):
        file = folder / location
        raw, offset = kept.raw_data, file.stat().st_size
        file.write_bytes(file.read_bytes() + raw + b"tail" * 16)
        set_external_data(kept, location, offset, len(raw))
        kept.ClearField("raw_data")
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def locations_in(path: Path) -> list[str]:
    """Where the tensors of a written model say their data lies: initializers, then constants."""
    graph = onnx.load(path, load_external_data=False).graph
    held = [*graph.initializer, *(n.attribute[0].t for n in graph.node if n.op_type == "Constant")]
    return [
        entry.value
        for t in held
        if t.data_location == TensorProto.EXTERNAL
        for entry in t.external_data
        if entry.key == "location"
    ]


def hashes(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def optimize(model: Path, output: Path, weights: str = "copy") -> None:
    report = api.optimize(model, output, weights=weights, trial=OFF)
    assert report.replaced == 1


def check_runs(output: Path, original: Path) -> None:
    wanted = run(original, feeds(), library=False)["out"].astype(np.float64)
    for result in both_ways(output, feeds()):
        close(result["out"], wanted, 1e-4)


def test_weights_are_copied_beside_the_output(tmp_path: Path) -> None:
    path = save_external(tmp_path / "in")
    before = hashes(tmp_path / "in")
    output = tmp_path / "out" / "o.onnx"
    output.parent.mkdir()
    optimize(path, output)
    assert hashes(tmp_path / "in") == before
    assert sorted(os.listdir(output.parent)) == ["o.onnx", "o.onnx.data"]
    assert (output.parent / "o.onnx.data").read_bytes() == (path.parent / "m.data").read_bytes()
    onnx.checker.check_model(output)
    check_runs(output, path)
    (tmp_path / "in").rename(tmp_path / "gone")
    check_runs(output, tmp_path / "gone" / "m.onnx")


def test_running_twice_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_external(tmp_path / "in")
    output = tmp_path / "o.onnx"
    optimize(path, output)
    first = hashes(tmp_path)
    monkeypatch.chdir("/")
    optimize(path, output)
    assert hashes(tmp_path) == first


def test_two_data_files_and_folders(tmp_path: Path) -> None:
    path = save_external(tmp_path / "in", ("sub/a.bin", "b.bin"))
    output = tmp_path / "o.onnx"
    optimize(path, output)
    assert {file.name for file in tmp_path.glob("o.onnx*")} == {
        "o.onnx",
        "o.onnx.data",
        "o.onnx.data1",
    }
    check_runs(output, path)


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    path = save_external(tmp_path / "in")
    optimize(path, tmp_path / "o.onnx")
    size = (path.parent / "m.data").stat().st_size
    assert (tmp_path / "o.onnx.data").stat().st_size == size
    assert locations_in(tmp_path / "o.onnx") == ["o.onnx.data"] * 2


def test_an_old_longer_data_file_is_replaced(tmp_path: Path) -> None:
    path = save_external(tmp_path / "in")
    (tmp_path / "o.onnx.data").write_bytes(b"x" * 100_000)
    optimize(path, tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx.data").read_bytes() == (path.parent / "m.data").read_bytes()


def test_weights_by_reference(tmp_path: Path) -> None:
    path = save_external(tmp_path / "in")
    before = hashes(tmp_path)
    optimize(path, tmp_path / "o.onnx", weights="reference")
    assert hashes(tmp_path).keys() - before.keys() == {"o.onnx"}
    assert locations_in(tmp_path / "o.onnx") == ["in/m.data"] * 2
    check_runs(tmp_path / "o.onnx", path)


def test_a_reference_upwards_is_refused(tmp_path: Path) -> None:
    path = save_external(tmp_path / "in")
    (tmp_path / "out").mkdir()
    with pytest.raises(SparsifyError, match="--weights copy"):
        optimize(path, tmp_path / "out" / "o.onnx", weights="reference")
    assert os.listdir(tmp_path / "out") == []


def test_symlinked_data_is_copied_as_a_file(tmp_path: Path) -> None:
    path = save_external(tmp_path / "in")
    blob = tmp_path / "blob"
    (path.parent / "m.data").rename(blob)
    (path.parent / "m.data").symlink_to(blob)
    optimize(path, tmp_path / "o.onnx")
    data = tmp_path / "o.onnx.data"
    assert not data.is_symlink()
    assert data.read_bytes() == blob.read_bytes()
    onnx.checker.check_model(tmp_path / "o.onnx")


def test_a_symlinked_model_finds_its_data(tmp_path: Path) -> None:
    """Model hubs keep snapshots of links; the data stands beside the link."""
    path = save_external(tmp_path / "in")
    blobs = tmp_path / "blobs"
    path.parent.rename(blobs)
    path.parent.mkdir()
    for name in ("m.onnx", "m.data"):
        (path.parent / name).symlink_to(blobs / name)
    optimize(path, tmp_path / "o.onnx")
    check_runs(tmp_path / "o.onnx", blobs / "m.onnx")


# Refusals --------------------------------------------------------------------------------------


def refused(model: Path, output: Path, match: str) -> None:
    """The output is refused, every file is as before, and no new one stands anywhere."""
    folder = output.parent
    before = hashes(folder)
    with pytest.raises(SparsifyError, match=match):
        api.optimize(model, output, trial=OFF)
    assert hashes(folder) == before


def test_the_input_is_no_output(tmp_path: Path) -> None:
    path = save(plain_model(), tmp_path)
    refused(path, path, "the input")
    (tmp_path / "link.onnx").symlink_to(path)
    refused(path, tmp_path / "link.onnx", "the input")
    refused(tmp_path / "link.onnx", path, "the input")


def test_data_of_the_input_is_no_output(tmp_path: Path) -> None:
    path = save_external(tmp_path, ("o.onnx.data", "z.bin"))
    refused(path, tmp_path / "o.onnx", "choose another output name")


def test_no_data_file_of_the_input_is_overwritten_by_anothers_copy(tmp_path: Path) -> None:
    path = save_external(tmp_path, ("o.onnx.data1", "z.bin"))
    refused(path, tmp_path / "o.onnx", "choose another output name")


def test_the_model_does_not_overwrite_the_inputs_data(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    refused(path, tmp_path / "m.data", "input")


@pytest.mark.parametrize("location", ["../x.data", "/x.data", "a/../../x.data", ""])
def test_data_outside_the_directory_is_refused(location: str, tmp_path: Path) -> None:
    path = save_external(tmp_path / "in")
    (tmp_path / "x.data").write_bytes(b"0" * 10_000)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[1].external_data[0].value = location
    path.write_bytes(model.SerializeToString())
    refused(path, tmp_path / "o.onnx", "outside|no location")


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    path = save_external(tmp_path / "in")
    (path.parent / "m.data").unlink()
    refused(path, tmp_path / "o.onnx", "m.data")


def test_a_data_file_cut_short_is_named(tmp_path: Path) -> None:
    path = save_external(tmp_path / "in")
    data = path.parent / "m.data"
    data.write_bytes(data.read_bytes()[:600])
    refused(path, tmp_path / "o.onnx", "m.data")


def test_a_directory_is_no_output(tmp_path: Path) -> None:
    path = save(plain_model(), tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(SparsifyError, match="is a directory"):
        api.optimize(path, tmp_path / "folder", trial=OFF)
    with pytest.raises(SparsifyError, match="does not exist"):
        api.optimize(path, tmp_path / "nowhere" / "o.onnx", trial=OFF)


def test_nothing_is_left_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_external(tmp_path / "in")
    (tmp_path / "o.onnx").write_bytes(b"an older output")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(path, tmp_path / "o.onnx", "No space left")


def test_nothing_is_left_when_the_check_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_external(tmp_path / "in")

    def fail(*args: object, **named: object) -> None:
        raise SparsifyError("does not agree")

    monkeypatch.setattr(api, "verification_of", fail)
    before = hashes(tmp_path)
    with pytest.raises(SparsifyError, match="does not agree"):
        api.optimize(path, tmp_path / "o.onnx")
    assert hashes(tmp_path) == before


def test_external_tensors_in_bodies_and_constants_come_along(tmp_path: Path) -> None:
    path = save_external(tmp_path / "in")
    model = onnx.load(path, load_external_data=False)
    inner = TensorProto()
    inner.CopyFrom(model.graph.initializer[2])
    constant = helper.make_node("Constant", [], ["again"], "constant", value=inner)
    model.graph.node.insert(0, constant)
    path.write_bytes(model.SerializeToString())
    optimize(path, tmp_path / "o.onnx")
    assert locations_in(tmp_path / "o.onnx") == ["o.onnx.data"] * 3


# Large models ------------------------------------------------------------------------------------

_CONVERT = """
import sys, resource
from sparsify import api
report = api.optimize(sys.argv[1], sys.argv[2], weights="reference", trial=api.Trial(enabled=False))
assert report.replaced == 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_model_over_two_gigabytes_in_little_memory(tmp_path: Path) -> None:
    rows, width = 600_000, 1024
    with (tmp_path / "e.data").open("wb") as file:
        file.truncate(rows * width * 4)
    table = TensorProto(name="e", data_type=FLOAT, dims=[rows, width])
    table.raw_data = b""
    set_external_data(table, "e.data", 0, rows * width * 4)
    table.ClearField("raw_data")
    nodes = [
        node("Gather", "e i", "rows"),
        node("Add", "rows x", "sum"),
        node("Reshape", "sum shape", "split"),
        node("Transpose", "split", "q", perm=[0, 2, 1, 3]),
        node("Identity", "q", "k"),
        node("Identity", "q", "v"),
        *plain_nodes(),
    ]
    inputs = [("i", TensorProto.INT64, ["s"]), ("x", FLOAT, ["s", width])]
    shape = tensor("shape", [1, -1, 16, 64], np.int64)
    outputs = [("y", FLOAT, [1, 16, "s", 64])]
    path = tmp_path / "m.onnx"
    path.write_bytes(build(nodes, inputs, outputs, [table, shape, C]).SerializeToString())
    done = subprocess.run(
        [sys.executable, "-c", _CONVERT, str(path), str(tmp_path / "o.onnx")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 1 << 30
    given: dict[str, Array] = {
        "i": np.arange(300, dtype=np.int64),
        "x": np.random.default_rng(0).standard_normal((300, width)).astype(np.float32),
    }
    wanted = run(path, given, library=False)["y"].astype(np.float64)
    for result in both_ways(tmp_path / "o.onnx", given):
        close(result["y"], wanted, 2e-5)


def test_the_order_of_sets_does_not_show_in_the_file(tmp_path: Path) -> None:
    model = save(model_of(Form(mask="where_then_add", repeat="expand")), tmp_path)
    files = []
    for seed in ("1", "2"):
        output = tmp_path / f"{seed}.onnx"
        words = ["-m", "sparsify", model, "-o", output, "--pattern", "mean_key:density=0.5"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, *map(str, words), "-q"], env=environment, check=True)
        files.append(output.read_bytes())
    assert files[0] == files[1]
