"""Makes the files: tiny models through one of torch's two exporters, quantised or not."""

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from onnxruntime import quantization

from benchmarks.zoo.architectures import SIZES
from benchmarks.zoo.feeds import Arrays, feeds
from benchmarks.zoo.flat import Flat
from benchmarks.zoo.variants import Variant

UNMASKED = ("vision", "diffusion")
"""Where every kind of node is quantised: elsewhere, a mask of the lowest float that is added to
scores would leave eight bits for both, and nothing of the scores."""


def export(variant: Variant, path: Path) -> None:
    """Write the file.

    Raises:
        Exception: torch or the quantiser fails, with whatever they have to say.
    """
    model, arrays = Flat(variant), feeds(variant, SIZES[0])
    if variant.numbers == "fp16":
        model = model.half()
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, made = Path(folder) / "plain.onnx", Path(folder) / "made.onnx"
        with torch.no_grad():
            _exported(model, variant, tensors, plain)
        if variant.numbers == "int8":
            quantization.quantize_dynamic(plain, made)
        elif variant.numbers == "qdq":
            kinds = None if variant.row.domain in UNMASKED else ["MatMul", "Gemm"]
            quantization.quantize_static(
                plain, made, _Calibration(arrays), op_types_to_quantize=kinds
            )
        else:
            made = plain
        made.rename(path)


def _exported(
    model: Flat, variant: Variant, tensors: Mapping[str, torch.Tensor], path: Path
) -> None:
    axes = {
        each.name: {axis: dim for axis, dim in enumerate(each.shape) if isinstance(dim, str)}
        for each in variant.inputs
    }
    common: dict[str, Any] = {"input_names": list(tensors), "opset_version": variant.opset}
    if variant.exporter == "torchscript":
        common |= {"dynamo": False, "dynamic_axes": axes}
    else:
        shapes = tuple(dict.fromkeys(each, torch.export.Dim.AUTO) for each in axes.values())
        common |= {"dynamo": True, "dynamic_shapes": (shapes,), "external_data": False}
    torch.onnx.export(model, tuple(tensors.values()), path, **common)


class _Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]
    """One set of inputs to find ranges on."""

    def __init__(self, arrays: Arrays) -> None:
        self.left = [arrays]

    def get_next(self) -> Arrays | None:
        """The set, once."""
        return self.left.pop() if self.left else None
