"""Public fixtures of ONNX Runtime's fusion tests: every attention is a site or has a reason."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from running import OFF

from sparsify import SparsifyError, api, find_sites, load
from sparsify.feeds import stand_ins
from sparsify.verification import compare, run_model

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "models" / "ort_fixtures"
REASON = "the fixtures of ONNX Runtime's fusion tests do not stand beside this checkout"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=REASON)

BROKEN = "generated/tf2onnx_bert_3d_attention_float_mask.onnx"
"""It reads a tensor that nothing makes, and ONNX Runtime does not load it either."""

LEFT = {
    "attention_distilbert": ["scores_unknown"],  # its mask fills with 0.0, which masks nothing
    "conformer_self_mha": ["softmax_axis"],
    "self_attention_megatron_basic_test": ["scores_unknown"],
}
"""Fixtures of opset 12 and newer whose one attention is not taken, with the refusal's code."""

FILES = sorted(str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*.onnx"))
FILES = [name for name in FILES if name != BROKEN]


def manifest() -> dict[str, int]:
    entries = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
    counts = {entry["file"]: entry["raw_attention"] for entry in entries}
    return {name: count for name, count in counts.items() if name != BROKEN}


def test_the_broken_fixture_is_refused_in_one_line() -> None:
    with pytest.raises(SparsifyError, match="reads 'unsqueeze1_out', which nothing makes"):
        load(FOLDER / BROKEN)


def softmax_labels(graph: onnx.GraphProto) -> Iterator[str]:
    for n in graph.node:
        if n.op_type == "Softmax":
            yield n.name or f"Softmax({n.output[0]})"
        for attribute in n.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from softmax_labels(attribute.g)


@pytest.mark.parametrize("name", FILES)
def test_every_softmax_is_a_site_or_a_refusal(name: str) -> None:
    findings = find_sites(load(FOLDER / name))
    named = {label for site in findings.sites for label in site.nodes}
    named |= {label for refusal in findings.refusals for label in refusal.nodes}
    labels = set(softmax_labels(onnx.load(FOLDER / name, load_external_data=False).graph))
    assert labels <= named
    assert len(findings.sites) + len(findings.refusals) >= manifest()[name]
    for refusal in findings.refusals:
        assert refusal.code
        assert len(refusal.reason) > 10


def test_all_attentions_are_sites_but_for_those_known_to_be_left() -> None:
    """Every attention in files that a function body can be written for, but for these."""
    left = {}
    for name, count in manifest().items():
        model = load(FOLDER / name)
        if model.opset >= 12 and count:
            findings = find_sites(model)
            if len(findings.sites) < count:
                left[Path(name).stem] = [refusal.code for refusal in findings.refusals]
    assert left == LEFT


@pytest.mark.parametrize("name", [name for name in FILES if "no_past" in name or "bert" in name])
def test_what_is_replaced_computes_the_same(name: str, tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    report = api.optimize(FOLDER / name, output, trial=OFF)
    if not report.replaced:
        return
    feeds = stand_ins(load(FOLDER / name))
    try:
        wanted = run_model(FOLDER / name, [feeds], library=False).outputs
    except SparsifyError:
        pytest.skip("the fixture itself does not run on stand-in inputs")
    for library in (False, True):
        for error in compare(wanted, run_model(output, [feeds], library=library).outputs):
            half = any(x.dtype == np.float16 for x in wanted[0].values())
            assert error.rel_l2 < (2e-2 if half else 1e-3)
