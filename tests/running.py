"""What the tests of the core share: find, rewrite, run with the library and without it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from graphs import Array, save
from onnx import ModelProto

from sparsify import api, find_sites, load, runtime
from sparsify.report import Report
from sparsify.site import Findings, Site

OFF = api.Trial(enabled=False)


def found(model: ModelProto, folder: Path) -> Findings:
    return find_sites(load(save(model, folder)))


def only_site(model: ModelProto, folder: Path) -> Site:
    findings = found(model, folder)
    assert findings.refusals == ()
    (site,) = findings.sites
    return site


def codes(model: ModelProto, folder: Path) -> list[str]:
    """The codes of all refusals, where no site is found; each has a sentence and nodes."""
    findings = found(model, folder)
    assert findings.sites == ()
    for refusal in findings.refusals:
        assert len(refusal.reason) > 10
        assert refusal.nodes
    return [refusal.code for refusal in findings.refusals]


def rewritten(model: ModelProto, folder: Path, *, patterns: tuple[str, ...] = ()) -> Path:
    """The path of the output, every site of which is replaced."""
    output = folder / "out.onnx"
    report = optimized(save(model, folder), output, patterns=patterns)
    assert report.replaced == report.found > 0, report.refusals
    onnx.checker.check_model(output)
    return output


def optimized(model: Path, output: Path, *, patterns: tuple[str, ...] = ()) -> Report:
    return api.optimize(model, output, patterns=patterns, trial=OFF)


def run(model: Path, feeds: Mapping[str, Array], *, library: bool) -> dict[str, Array]:
    return runtime.run(runtime.session(model, library=library, threads=1), feeds)


def both_ways(output: Path, feeds: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """The outputs without the library, then with it."""
    for library in (False, True):
        yield run(output, feeds, library=library)


def close(got: Array, wanted: Array, tolerance: float) -> None:
    assert got.shape == wanted.shape
    error: npt.NDArray[np.float64] = np.abs(got.astype(np.float64) - wanted)
    assert error.max() <= tolerance
