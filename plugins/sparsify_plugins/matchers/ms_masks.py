"""The padding masks of ONNX Runtime's Attention and MultiHeadAttention, in all their ranks.

Masked scores get `mask_filter_value` added. Only where that leaves nothing of them, lengths become
key lengths, which spare the work; every other mask stays what it is, a number.
"""

from dataclasses import dataclass

from sparsify.constants import Dims, dims
from sparsify.layout import Step, Unsqueeze
from sparsify.site import VANISHES, Mask, Operand
from sparsify.view import Node, Tensor, element_type, producer
from sparsify_plugins.matchers.fused import (
    INT32,
    Obstacle,
    Prologue,
    lengths_of_keys,
    padding_bias,
)

_FILTER = -10000.0

_LENGTHS = ("ReduceSum", "EmbedLayerNormalization")
"""Operators that give a mask of one dimension as the lengths of the sequences."""


@dataclass(frozen=True)
class Padding:
    """What a padding mask becomes: lengths of keys, or a mask."""

    key_lengths: str = ""
    masks: tuple[Mask, ...] = ()


def mask_obstacle(node: Node, mask: Tensor | None) -> Obstacle | None:
    """Why a padding mask is not understood; the node's first input tells the batch."""
    sizes = None if mask is None else mask_sizes(mask)
    if mask is None or (sizes is not None and len(sizes) in (2, 3)):
        return None
    if sizes is None or len(sizes) != 1:
        return "mask_unsupported", f"its mask has {len(sizes) if sizes else 'unknown'} dimensions"
    if sizes[0] is not None and (dims(node.inputs[0]) or (None,))[0] not in (None, sizes[0]):
        return "mask_unsupported", "its mask has several numbers for each sequence"
    if _filter(node) > VANISHES:
        return "mask_unsupported", "its mask_filter_value leaves masked keys some weight"
    return None


def _filter(node: Node) -> float:
    return float(node.attrs.get("mask_filter_value", _FILTER))


def mask_sizes(mask: Tensor) -> Dims | None:
    """The sizes of a mask; an embedding of ONNX Runtime gives lengths."""
    node = producer(mask)
    known = dims(mask)
    return (None,) if known is None and node is not None and node.op in _LENGTHS else known


def padding(node: Node, before: Prologue, mask: Tensor | None, kind: int, count: str) -> Padding:
    """Read the mask of a node whose scores are of type `kind`; `count` is the batch, 1-D."""
    if mask is None:
        return Padding()
    sizes = mask_sizes(mask) or ()
    if len(sizes) == 1:
        name = before.read(mask, ("batch",), "lengths", element_type(mask) or INT32)
        return Padding(key_lengths=lengths_of_keys(before, name, count))
    names: tuple[int | str, ...] = ("batch", "q_length", "k_length")
    names = names if len(sizes) == 3 else ("batch", "k_length")
    name = before.read(mask, names, "mask", element_type(mask) or INT32)
    bias = padding_bias(before, name, kind, _filter(node))
    steps: tuple[Step, ...] = (Unsqueeze((1,) if len(sizes) == 3 else (1, 2)),)
    queries = sizes[1] if len(sizes) == 3 else 1
    operand = Operand(bias, steps)
    return Padding(masks=(Mask("add", operand, kind, sizes=(None, 1, queries, sizes[-1])),))
