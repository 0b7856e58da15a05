"""Random inputs for a variant."""

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.zoo.architectures import CLASSES, WORDS, Sizes
from benchmarks.zoo.variants import Variant

Arrays = dict[str, npt.NDArray[Any]]


def feeds(variant: Variant, sizes: Sizes, *, left: bool = False) -> Arrays:
    """All inputs; the last sequence is padded by a third, on the right or on the left."""
    rng = np.random.default_rng(0)
    floats = np.float16 if variant.numbers == "fp16" else np.float32
    result: Arrays = {}
    for each in variant.inputs:
        shape = each.at(sizes)
        if each.kind == "ids":
            result[each.name] = rng.integers(3, WORDS, shape)
        elif each.kind == "classes":
            result[each.name] = rng.integers(0, CLASSES, shape)
        elif each.kind == "mask":
            padding = shape[-1] // 3
            result[each.name] = np.ones(shape, np.int64)
            result[each.name][-1, slice(0, padding) if left else slice(-padding, None)] = 0
        else:
            result[each.name] = rng.standard_normal(shape).astype(floats)
    return _padded(result)


def _padded(arrays: Arrays) -> Arrays:
    """Padding has the lowest id, as tokenizers write it: some models pool at the highest."""
    ids, mask = arrays.get("input_ids"), arrays.get("attention_mask")
    if ids is not None and mask is not None and ids.shape == mask.shape:
        ids[mask == 0] = 0
    return arrays
