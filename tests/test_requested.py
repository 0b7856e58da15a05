"""Patterns in whole models: any batch and length, and the same numbers with and without library."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from graphs import Array, Form, feeds_of, model_of, save, truth_of
from running import OFF, both_ways, close

from sparsify import SparsifyError, api
from sparsify.report import Report

PATTERNS = (
    "window:size=16,q_block=16,k_block=16",
    "window:size=8,global_tokens=4,q_block=32,k_block=8",
    "dense_regions:region=32,global_columns=8,q_block=16,k_block=16",
    "diagonal:q_block=32,k_block=16",
    "mean_key:density=0.3,q_block=16,k_block=8",
    "mean_key:tau=0.8,q_block=32,k_block=4",
)
EVERYTHING = ("window:size=100000", "mean_key:density=1.0", "mean_key:tau=1.0,k_block=1")
FORMS = {
    "plain": Form(scale="div_after"),
    "masked": Form(mask="where_then_add", guard=True),
    "grouped": Form(repeat="expand"),
}
SIZES = ((1, 1, 1), (2, 17, 33), (1, 70, 70))


def optimized(form: Form, folder: Path, pattern: str, residual: str) -> tuple[Path, Report]:
    output = folder / "out.onnx"
    model = save(model_of(form), folder)
    report = api.optimize(model, output, patterns=[pattern], residual=residual, trial=OFF)
    return output, report


def sized(form: Form, batch: int, queries: int, keys: int) -> Mapping[str, Array]:
    return feeds_of(form, batch=batch, s=queries, t=keys)


@pytest.mark.parametrize("residual", ["none", "mean", "iso"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("form", FORMS)
def test_body_and_kernel_agree_at_any_size(form, pattern, residual, tmp_path):
    output, report = optimized(FORMS[form], tmp_path, pattern, residual)
    (decision,) = report.decisions
    assert (decision.grade, decision.pattern, decision.residual) == ("requested", pattern, residual)
    for size in SIZES:
        plain, native = both_ways(output, sized(FORMS[form], *size))
        close(native["y"], plain["y"].astype(np.float64), 2e-5)


@pytest.mark.parametrize("pattern", EVERYTHING)
@pytest.mark.parametrize("form", FORMS)
def test_a_pattern_that_keeps_everything_changes_nothing(form, pattern, tmp_path):
    output, _ = optimized(FORMS[form], tmp_path, pattern, "iso")
    for size in SIZES:
        feeds = sized(FORMS[form], *size)
        for result in both_ways(output, feeds):
            close(result["y"], truth_of(FORMS[form], feeds), 2e-5)


def test_compensation_helps_on_what_a_window_leaves_out(tmp_path):
    errors = {}
    for residual in ("none", "mean", "iso"):
        form = FORMS["plain"]
        output, _ = optimized(form, tmp_path, "window:size=16,q_block=16,k_block=16", residual)
        feeds = sized(form, 1, 128, 128)
        truth = truth_of(form, feeds)
        _, native = both_ways(output, feeds)
        errors[residual] = np.linalg.norm(native["y"] - truth) / np.linalg.norm(truth)
    assert errors["iso"] < errors["mean"] < errors["none"]


@pytest.mark.parametrize("option", [{"residual": "iso2"}, {"weights": "link"}])
def test_an_option_that_is_not_known_is_an_error_and_writes_nothing(option, tmp_path):
    model = save(model_of(Form()), tmp_path)
    patterns = ["window:size=16"]
    with pytest.raises(SparsifyError, match=r"is named '(iso2|link)'"):
        api.optimize(model, tmp_path / "out.onnx", patterns=patterns, trial=OFF, **option)
    assert [file.name for file in tmp_path.iterdir()] == [model.name]
