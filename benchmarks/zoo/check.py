"""Checks one file: what is found in it, and whether it computes the same once rewritten."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import onnx

from benchmarks.zoo.architectures import SIZES, Sizes
from benchmarks.zoo.feeds import Arrays, feeds
from benchmarks.zoo.results import Result
from benchmarks.zoo.variants import Variant
from sparsify import SparsifyError, api
from sparsify.verification import compare, noise_floor, run_model

TOLERANCES = {"fp32": 1e-4, "fp16": 1e-2, "int8": 2e-2, "qdq": 1e-1}
"""Relative L2 error of the worst output, beyond which the original must vary by half as much.

Where activations are rounded to eight bits, a last digit can decide a whole step; and QDQ files
round the scores and the probabilities as well, the operator does not.
"""


def check(variant: Variant, path: Path) -> Result:
    """Find, rewrite, and run both at two sizes, without the library and with it.

    What ONNX Runtime does not run may still run at batch 1: its RotaryEmbedding does not broadcast.
    """
    proto, why = onnx.load(path, load_external_data=False), ""
    fixed = _fixed(variant, proto)
    for sizes in (fixed, {**fixed, "batch": 1}):
        trials = _trials(variant, proto, sizes)
        try:
            wanted = run_model(path, trials, library=False).outputs
        except SparsifyError as error:
            why = why or str(error).replace(str(path), "it").partition("(")[2].rstrip(")")
        else:
            return _checked(variant, path, trials, wanted, sizes)
    return Result(variant.name, "not runnable", variant.promised, why[:300])


def _checked(
    variant: Variant, path: Path, trials: list[Arrays], wanted: list[Arrays], fixed: Sizes
) -> Result:
    errors: list[float] = []
    others: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.onnx"
        report = api.optimize(path, output, trial=api.Trial(enabled=False))
        for library in (False, True) if report.output else ():
            got = run_model(output, trials, library=library).outputs
            errors.append(_worst(wanted, got))
            others.append(_worst(_unpadded(wanted, trials), _unpadded(got, trials)))
    tolerance, floor = TOLERANCES[variant.numbers], 0.0
    status = "ok" if report.replaced >= variant.promised else "missed"
    if max(errors, default=0.0) > tolerance:
        floor = noise_floor(path, trials)
        tolerance = max(tolerance, 2 * floor)
        if max(others) > tolerance:
            status = "wrong"
        elif max(errors) > tolerance and status == "ok":
            status = "empty rows"
    return Result(
        variant.name,
        status,
        variant.promised,
        found=report.found,
        replaced=report.replaced,
        refusals=tuple(refusal.to_json() for refusal in report.refusals),
        errors=tuple(errors),
        floor=floor,
        fixed=tuple(sorted(fixed)),
    )


def _fixed(variant: Variant, model: onnx.ModelProto) -> Sizes:
    """The dimensions of which the exporter made numbers."""
    declared = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    return {
        name: SIZES[0][name]
        for each in variant.inputs
        for dim, made in zip(each.shape, declared.get(each.name, ()), strict=False)
        if isinstance(dim, str) and made.dim_value
        for name in dim.split("+")
    }


def _trials(variant: Variant, model: onnx.ModelProto, fixed: Sizes) -> list[Arrays]:
    """Two sets of inputs; the exporter may have dropped some."""
    kept = {value.name for value in model.graph.input}
    both = [feeds(variant, {**sizes, **fixed}, left=sizes is SIZES[1]) for sizes in SIZES]
    return [{name: array for name, array in each.items() if name in kept} for each in both]


def _worst(wanted: list[Arrays], got: list[Arrays]) -> float:
    return max(error.rel_l2 for error in compare(wanted, got))


def _unpadded(outputs: list[Arrays], trials: list[Arrays]) -> list[Arrays]:
    """The outputs with zeros where the last sequence is padding."""
    result = []
    for arrays, trial in zip(outputs, trials, strict=True):
        changed = {name: array.copy() for name, array in arrays.items()}
        masks = [trial[name] for name in ("attention_mask",) if name in trial]
        tokens = [trial[name] for name in ("input_ids",) if name in trial]
        lengths = {array.shape[1] for array in (*masks, *tokens)}
        for array, mask in itertools.product(changed.values(), masks):
            for axis, size in enumerate(array.shape[1:]):
                if size in lengths:  # the tokens, which are the last of the keys, or all keys
                    np.moveaxis(array[-1], axis, 0)[mask[-1, -size:] == 0] = 0
        result.append(changed)
    return result
