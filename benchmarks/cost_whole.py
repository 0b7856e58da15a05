"""Whole models: the time that is predicted for a rewritten file, against the time of that file."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import sparsify
from benchmarks import t5
from benchmarks.paired import Feeds, bound, interleave, session
from benchmarks.profile import events
from samples.vit import model as vit
from sparsify import find_sites, load
from sparsify.api import Trial
from sparsify.plugins import Device
from sparsify.site_work import exact_work, pattern_work
from sparsify.spec import make_pattern, parse_spec

PATTERN, RESIDUAL = "mean_key:density=0.2,k_block=16", "mean"
"""What the sparse variant computes."""

OPERATORS = frozenset({"SparseAttention", "MeanKeyMass", "TopKBlocks"})

WARM, RUNS = 2, 3
"""Profiled runs of which nothing is taken, while memory is still being handed out, and counted ones
for what a model does beside its attentions; the median counts."""


@dataclass(frozen=True)
class Model:
    """One model and one input of `tokens` tokens."""

    name: str
    path: Path
    feeds: Feeds
    tokens: int

    def __str__(self) -> str:
        return f"{self.name}, {self.tokens} tokens"


@dataclass(frozen=True)
class Whole:
    """Seconds of one variant of a model: measured, and predicted from `rest` and the attentions."""

    model: Model
    variant: str
    rest: float
    attentions: float
    measured: float

    @property
    def predicted(self) -> float:
        """What was measured once beside the attentions, and what is predicted for them."""
        return self.rest + self.attentions

    @property
    def error(self) -> float:
        """Relative difference of the prediction from the time."""
        return self.predicted / self.measured - 1


def models(folder: Path) -> Iterator[Model]:
    """A vision transformer on photos, and an encoder with a bias on every score on word pieces."""
    path = vit.write_model(folder / "vit.onnx")
    for size in (518, vit.SIZE):
        feeds = vit.model_input(vit.photo(size=size))
        yield Model("ViT-S", path, feeds, vit.tokens(size))
    path = t5.write_model(folder / "t5.onnx")
    for length in (1024, 4096):
        yield Model("T5-small encoder", path, t5.feeds(length), length)


def judge(model: Model, device: Device, folder: Path, pairs: int, threads: int) -> list[Whole]:
    """Predict and time the exact and the sparse variant."""
    files = {name: folder / f"{name}.onnx" for name in ("exact", "sparse")}
    trial = Trial(enabled=False)
    sparsify.optimize(model.path, files["exact"], trial=trial)
    sparsify.optimize(
        model.path, files["sparse"], patterns=(PATTERN,), residual=RESIDUAL, trial=trial
    )
    rest = _rest(files["exact"], model.feeds, threads)
    attentions = _attentions(model, device)
    calls = {
        name: bound(session(file, threads=threads), model.feeds) for name, file in files.items()
    }
    times = interleave(calls, pairs)
    return [Whole(model, name, rest, attentions[name], times[name].median) for name in files]


def _rest(path: Path, feeds: Feeds, threads: int) -> float:
    """Seconds of a run that are not spent in our operators."""
    seen = events(path, feeds, threads=threads, runs=WARM + RUNS)
    runs = [event["dur"] for event in seen if event["name"] == "model_run"]
    ours = [
        event["dur"]
        for event in seen
        if event.get("args", {}).get("op_name") in OPERATORS
        and event["name"].endswith("_kernel_time")
    ]
    each = np.reshape(ours, (len(runs), -1)).sum(axis=1)
    rest = (run - own for run, own in zip(runs, each.tolist(), strict=True))
    return float(statistics.median(list(rest)[WARM:])) / 1e6


def _attentions(model: Model, device: Device) -> Mapping[str, float]:
    """Predicted seconds of all attentions, by variant."""
    pattern = make_pattern(parse_spec(PATTERN))
    seconds = {"exact": 0.0, "sparse": 0.0}
    for site in find_sites(load(model.path)).sites:
        known = replace(site, batch=1, q_length=model.tokens, k_length=model.tokens)
        for name, work in (
            ("exact", exact_work(known)),
            ("sparse", pattern_work(known, pattern, RESIDUAL)),
        ):
            assert work is not None, "both lengths are given"
            seconds[name] += device.cost(work).seconds
    return seconds
