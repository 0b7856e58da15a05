"""What callers may rely on: public names, a light import, registries that say what is wrong."""

import dataclasses
import inspect
import logging
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from graphs import plain_feeds, plain_model, save
from running import OFF, close, run

import sparsify
from sparsify import SparsifyError, api, plugins, runtime
from sparsify.api import Trial

PUBLIC = [
    "Decision",
    "Findings",
    "Mask",
    "Model",
    "Operand",
    "OutputError",
    "Plan",
    "Refusal",
    "Report",
    "Request",
    "Site",
    "SparsifyError",
    "Trial",
    "Verification",
    "apply",
    "apply_plan",
    "bench",
    "find_sites",
    "library_path",
    "library_paths",
    "load",
    "make_plan",
    "optimize",
    "read_plan",
    "session",
    "verify",
]


def test_the_public_names() -> None:
    assert sorted(sparsify.__all__) == PUBLIC
    for name in PUBLIC:
        thing = getattr(sparsify, name)
        assert inspect.getdoc(thing), name
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = sparsify.nonesuch


def test_results_are_frozen() -> None:
    for name in PUBLIC:
        thing = getattr(sparsify, name)
        if dataclasses.is_dataclass(thing):
            assert thing.__dataclass_params__.frozen, name


@pytest.mark.parametrize(
    "statement", ["import sparsify", "import sparsify.cli", "from sparsify import Site, Plan"]
)
def test_importing_is_light(statement: str) -> None:
    heavy = ["torch", "onnxruntime"]
    heavy += ["onnx_graphsurgeon", "onnx", "numpy"] if statement == "import sparsify" else []
    code = f"{statement}\nimport sys\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_the_steps_by_hand(tmp_path: Path) -> None:
    model = sparsify.load(save(plain_model(), tmp_path))
    findings = sparsify.find_sites(model)
    plan = sparsify.make_plan(model, findings, sparsify.Request())
    result = sparsify.apply_plan(model, findings.sites, plan)
    path = save(result, tmp_path, "o.onnx")
    feeds = plain_feeds()
    found = sparsify.verify(model.path, path, [feeds])
    assert found.outputs[0].name == "y"
    assert found.worst < 1e-5
    wanted = run(model.path, feeds, library=False)["y"]
    close(sparsify.session(path).run(None, feeds)[0], wanted.astype(float), 2e-5)


def test_the_documented_recipe_without_our_package(tmp_path: Path) -> None:
    """Two lines of ONNX Runtime run the output natively; none are needed to run it at all."""
    path, output = save(plain_model(), tmp_path), tmp_path / "o.onnx"
    api.optimize(path, output, trial=OFF)
    code = f"""
import onnxruntime, numpy, sys
options = onnxruntime.SessionOptions()
if len(sys.argv) > 1:
    options.register_custom_ops_library(sys.argv[1])
session = onnxruntime.InferenceSession({str(output)!r}, options)
x = numpy.ones((1, 4, 8, 16), numpy.float32)
print(session.run(None, dict(q=x, k=x, v=x))[0].mean(), "sparsify" in sys.modules)
"""
    for library in ([], [str(sparsify.library_path())]):
        command = [sys.executable, "-c", code, *library]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout.split() == ["1.0", "False"], done.stderr


def test_progress_names_every_step(tmp_path: Path) -> None:
    steps: list[str] = []
    path = save(plain_model(), tmp_path)
    api.optimize(path, tmp_path / "o.onnx", progress=steps.append)
    assert tuple(steps) == api.STEPS


def test_an_exact_result_that_differs_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong kernel is noticed before the file gets its name."""
    real = runtime.run

    def wrong(active: object, feeds: object) -> dict[str, object]:
        results = real(active, feeds)  # type: ignore[arg-type]
        ours = any("sparsify" in str(n) for n in active.get_modelmeta().custom_metadata_map)  # type: ignore[attr-defined]
        return {name: x + (0.1 if ours else 0.0) for name, x in results.items()}

    monkeypatch.setattr(runtime, "run", wrong)
    path = save(plain_model(), tmp_path)
    with pytest.raises(SparsifyError, match=r"m\.onnx.*differs"):
        api.optimize(path, tmp_path / "o.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_verification_is_skipped_with_a_reason(tmp_path: Path) -> None:
    path = save(plain_model(), tmp_path)
    report = api.optimize(path, tmp_path / "o.onnx", trial=Trial(enabled=False))
    assert report.verification.skipped == "not asked for"
    report = api.optimize(path, None)
    assert report.output is None
    assert report.verification.skipped


# Registries ----------------------------------------------------------------------------------


def entry(name: str, value: str, kind: str = "matchers") -> metadata.EntryPoint:
    return metadata.EntryPoint(name, value, f"sparsify.{kind}")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[metadata.EntryPoint]:
    """Entry points that stand for all installed ones; what a test adds is found."""
    entries: list[metadata.EntryPoint] = []
    plugins._entries.cache_clear()

    def found(group: str) -> list[metadata.EntryPoint]:
        return [e for e in entries if e.group == group]

    monkeypatch.setattr(metadata, "entry_points", found)
    yield entries
    plugins._entries.cache_clear()


def test_every_kind_has_plugins_by_entry_point() -> None:
    for kind in plugins.KINDS:
        for name in plugins.names(kind):
            assert plugins.owner(kind, name) == "onnx-sparsify"
            plugins.get(kind, name)
    fused = ["ms_attention", "ms_group_query", "ms_multi_head", "ms_unsupported", "onnx_attention"]
    assert plugins.names("matchers") == [*fused, "softmax"]


def test_a_name_registered_twice_is_an_error(registered: list[metadata.EntryPoint]) -> None:
    registered += [entry("same", "a:A"), entry("same", "b:B")]
    with pytest.raises(SparsifyError, match="'same' is registered twice, by a:A and b:B"):
        plugins.names("matchers")


def test_one_distribution_seen_twice_is_none(registered: list[metadata.EntryPoint]) -> None:
    registered += [entry("same", "a:A"), entry("same", "a:A")]
    assert plugins.names("matchers") == ["same"]


def test_a_broken_plugin_is_a_warning(
    registered: list[metadata.EntryPoint], caplog: pytest.LogCaptureFixture
) -> None:
    registered += [entry("broken", "nonesuch_package:X"), entry("good", "json:loads")]
    with caplog.at_level(logging.WARNING, logger="sparsify"):
        assert [name for name, _ in plugins.every("matchers")] == ["good"]
    assert "'broken' of nonesuch_package:X cannot be imported" in caplog.text
    with pytest.raises(SparsifyError, match="update or uninstall"):
        plugins.get("matchers", "broken")


def test_an_unknown_plugin_is_guessed(registered: list[metadata.EntryPoint]) -> None:
    registered += [entry("window", "json:loads", "patterns")]
    with pytest.raises(SparsifyError, match="no pattern is named 'widow'; did you mean 'window'"):
        plugins.get("patterns", "widow")
    with pytest.raises(SparsifyError, match="known are: window"):
        plugins.get("patterns", "zzz")
    with pytest.raises(SparsifyError, match="known are: none"):
        plugins.get("devices", "host")


def test_a_model_without_any_matcher(tmp_path: Path, registered: list[metadata.EntryPoint]) -> None:
    registered.append(
        entry("SparseAttention", "sparsify_ops.sparse_attention:SPARSE_ATTENTION", "operators")
    )
    findings = sparsify.find_sites(sparsify.load(save(plain_model(), tmp_path)))
    assert findings == sparsify.Findings()
