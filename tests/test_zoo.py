"""A few architectures through `python -m benchmarks.zoo`: exported, found, rewritten, compared."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("torch", "transformers", "diffusers", "onnxscript", "onnxruntime")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
ARCHITECTURES = ("bert", "llama", "vit", "whisper")

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} missing; run: pip install '.[cpu,zoo]'"
)


def zoo(folder: Path, *options: str) -> str:
    only = [f"--only={name}_*_fp32" for name in ARCHITECTURES]
    command = [sys.executable, "-m", "benchmarks.zoo", "--folder", str(folder), *only, *options]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("zoo")
    zoo(folder)
    return folder


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_promised_attention_is_replaced(folder: Path, name: str) -> None:
    mine = [result for result in results(folder) if result["name"].startswith(f"{name}_")]
    assert {result["name"].split("_")[1] for result in mine} == {"torchscript", "dynamo"}
    for result in mine:
        assert result["status"] == "ok", result
        assert result["replaced"] == result["promised"] > 0
        assert len(result["errors"]) == 2


def test_the_axes_are_spread(folder: Path) -> None:
    axes = zip(*(result["name"].split("_")[1:] for result in results(folder)), strict=True)
    exporters, attentions, opsets, uses, _ = map(set, axes)
    assert exporters == {"torchscript", "dynamo"}
    assert attentions == {"eager", "sdpa"}
    assert len(opsets) > 4
    assert uses == {"whole", "prefill", "past"}


def test_what_is_done_is_not_done_again_and_can_be_reported(folder: Path, tmp_path: Path) -> None:
    before = results(folder)
    told = zoo(folder, "--report", str(tmp_path / "coverage.md"))
    assert results(folder) == before
    assert len(told.splitlines()) == 1  # the totals
    text = (tmp_path / "coverage.md").read_text()
    assert "| whisper | 2 | " in text
