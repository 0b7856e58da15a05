"""The trained models that the benchmark runs, each with a real input."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from skimage import data, transform

from benchmarks.paired import Feeds
from samples.bert import documents
from samples.packages import packaged
from samples.vit import model as vit

OCR_WIDTH = 4096


@dataclass(frozen=True)
class Subject:
    """One model, what it runs on, and the options of its sparse variant, if it has one.

    `exact_limit` is the share of the original's time that the exact variant should take at most.
    """

    name: str
    path: Path
    feeds: Feeds
    sparse: tuple[str, ...] = field(default=())
    exact_limit: float = 1.0


def subjects(folder: Path) -> list[Subject]:
    """All models; what must be prepared for them is written into `folder`."""
    return [_vit(folder), _minilm(), _ocr()]


def _vit(folder: Path) -> Subject:
    path = vit.write_model(folder / "vit.onnx")
    options = [option for pattern in vit.PATTERNS for option in ("--pattern", pattern)]
    feeds = vit.model_input(vit.photo())
    name = f"ViT-S, {vit.tokens()} tokens"
    return Subject(name, path, feeds, (*options, "--residual", vit.RESIDUAL), 1 / 1.25)


def _minilm() -> Subject:
    feeds = documents.tokenized()
    count, length = feeds["input_ids"].shape
    return Subject(f"MiniLM-L3, {count} x {length} tokens", documents.model_path(), feeds)


def _ocr() -> Subject:
    path = packaged("rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx")
    return Subject(f"PP-OCRv4 rec, {OCR_WIDTH // 8} tokens", path, {"x": _line_of_text()})


def _line_of_text() -> vit.Floats:
    """A strip of a scanned page, 48 pixels high, repeated to a long line: [1, 3, 48, width]."""
    strip = data.page()[20:44] / 255.0  # type: ignore[no-untyped-call]
    scaled = transform.resize(strip, (48, strip.shape[1] * 2))  # type: ignore[no-untyped-call]
    line = np.tile(scaled, -(-OCR_WIDTH // scaled.shape[1]))[:, :OCR_WIDTH]
    normal = (line - 0.5) / 0.5
    return np.ascontiguousarray(np.broadcast_to(normal, (1, 3, *line.shape)), dtype=np.float32)
