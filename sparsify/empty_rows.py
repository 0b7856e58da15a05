"""Rows that a padding mask and a band leave without any key: the mean of V, as the original has it.

A low finite number on every key of a row makes its softmax uniform. The operator gives zeros there.
Which rows these are follows from counting the kept keys, in time linear in the length.
"""

from sparsify.builder import Builder
from sparsify.site import Site


def restore_mean(
    builder: Builder, site: Site, inputs: dict[str, str], result: str, known: dict[object, str]
) -> str:
    """Write the mean of V into the empty rows of `result` `[batch, heads, queries, value_dim]`.

    `known` holds the empty rows by mask and band: layers share them.
    """
    key = (site.masks, site.causal, site.left_window, site.bottom_right)
    if key not in known:
        known[key] = _empty(builder, site, inputs)
    mean = builder.reduce("ReduceMean", inputs["V"], [2], keepdims=True)
    return builder.op("Where", known[key], _repeated(builder, site, mean, result), result)


def _empty(builder: Builder, site: Site, inputs: dict[str, str]) -> str:
    """[batch, 1, queries, 1]: whether none of the keys that the band allows is kept."""
    counts = _counts(builder, inputs["attn_mask"])
    keys = builder.dims(inputs["K"], 2)
    place = builder.arange(builder.dim(inputs["Q"], 2))
    if "query_offset" in inputs:
        place = builder.op("Add", place, inputs["query_offset"])

    def kept_before(position: str) -> str:
        inside = builder.op("Min", builder.op("Max", position, builder.ints(0)), keys)
        return builder.gather(counts, inside, 3)

    end = builder.op("Add", place, builder.ints(1) if site.causal else keys)
    kept = kept_before(end)
    if site.left_window >= 0:
        start = builder.op("Sub", place, builder.ints(site.left_window))
        kept = builder.op("Sub", kept, kept_before(start))
    return builder.transpose(builder.op("Less", kept, builder.ints(1)), (0, 1, 3, 2))


def _counts(builder: Builder, mask: str) -> str:
    """[batch, 1, 1, keys + 1]: how many of the first k keys a bool mask keeps."""
    kept = builder.cast(mask, 7)
    sums = builder.op("CumSum", kept, builder.constant(3, "int64"))
    first = builder.slice(sums, builder.ints(0), builder.ints(1), 3)
    return builder.concat([builder.op("Sub", first, first), sums], 3)


def _repeated(builder: Builder, site: Site, mean: str, result: str) -> str:
    """The mean of each key-value head for every query head of its group."""
    if site.group == 1:
        return mean
    wide = builder.unsqueeze(mean, (2,))
    wide = builder.op("Expand", wide, builder.ints(1, 1, site.group, 1, 1))
    sizes = [builder.dims(result, 0, 1), builder.ints(1), builder.dims(result, 3)]
    return builder.reshape(wide, builder.concat(sizes, 0))
