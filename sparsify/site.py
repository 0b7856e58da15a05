"""What the finder reports: attentions in a normal form (sites), and candidates left alone.

A site says `softmax(softcap(scale * Q K^T) + bias) V` in terms of tensors that stand in the graph;
it holds names only, never graph objects, so it can be printed, compared and stored.
"""

from dataclasses import dataclass, replace

from onnx import NodeProto

from sparsify.layout import Cast, Step

VANISHES = -1e3
"""A score this low has no weight beside any score that a model makes."""

ABSORBS = -1e8
"""A fill this low is meant as the lowest number: nothing of a score that it is added to is left."""

MAIN_SCOPE = ""
"""The scope of a site in the model's main graph."""


@dataclass(frozen=True)
class Operand:
    """One input of the operator, as a tensor of the graph and the steps that give it its layout.

    The operator wants `[batch, heads, length, dim]`; without steps the tensor is taken as it is.
    """

    tensor: str
    steps: tuple[Step, ...] = ()

    def then(self, *steps: Step) -> "Operand":
        """The operand with more steps taken."""
        return replace(self, steps=(*self.steps, *steps))


@dataclass(frozen=True)
class Given:
    """A tensor that the nodes in `Site.before` read, and how a trial draws it.

    `sizes` are numbers or names of trial sizes: "batch", "q_heads", "kv_heads", "q_length",
    "k_length", "head_dim", "value_dim", "past_length"; a product is written "q_heads*head_dim", a
    difference "k_length-past_length". Where only "past_length" occurs, there are as many new keys
    as queries.
    `values`: "normal", "mask" (0 and 1, each row with a 1), "bias" (normal with some -inf),
    "lengths" (of keys, at least as many as queries), "last" (one less), "weight" (normal, made
    small by its rows), "positions" (0, 1, 2, ...), a size that the tensor is filled with, or the
    sizes that it holds.
    """

    tensor: str
    element_type: int
    sizes: tuple[int | str, ...]
    values: int | str | tuple[int | str, ...] = "normal"


@dataclass(frozen=True)
class Mask:
    """One term that the graph applies to the scores, in the order the graph applies it.

    * `add`: `factor * tensor` is added to the scaled scores;
    * `times`, `over`: the scores are multiplied, or divided, by `tensor`, whose last size is 1;
    * `keep`: scores where `tensor` is false (or 0) become `fill`;
    * `drop`: scores where `tensor` is true (or not 0) become `fill`.

    `element_type` is the ONNX data type of `tensor`. `sizes` are its dimensions after the operand's
    steps, aligned with the scores `[batch, heads, queries, keys]` from the right; None where open.
    With `tiled`, the tensor's batch is repeated as often as the scores' batch has it.
    """

    kind: str
    operand: Operand
    element_type: int
    factor: float = 1.0
    fill: float = float("-inf")
    sizes: tuple[int | None, ...] = ()
    tiled: bool = False

    @property
    def selects(self) -> bool:
        """Whether the term replaces scores by a number."""
        return self.kind in ("keep", "drop")

    @property
    def multiplies(self) -> bool:
        """Whether the term is a factor of the scores."""
        return self.kind in ("times", "over")

    @property
    def fills(self) -> bool:
        """Whether masked scores become the lowest number, which a row without keys averages."""
        return self.selects and not self.forbids

    @property
    def forbids(self) -> bool:
        """Whether masked scores vanish for good; else the term is arithmetic on the scores.

        With a fill from `ABSORBS` down, a row without any key is the mean of V in the original, and
        stays so by adding the lowest number. A milder fill (-1e4 is common) forbids.
        """
        return self.selects and (self.fill == float("-inf") or self.fill > ABSORBS)


@dataclass(frozen=True)
class Site:
    """One attention found in a graph, in the operator's normal form.

    `nodes` names every node that computes it, from the product with the keys to the product with
    the values. `group` is the number of query heads that share a key-value head, where K and V are
    the tensors before the graph repeats them. Heads and sizes are None where the graph does not fix
    them. `element_type` is the ONNX data type of Q. `output` is the tensor that the operator's
    result `[batch, heads, queries, value_dim]` replaces once the steps of `result` are taken.

    Query i stands at position i among the keys, or at `Sk - Sq + i` with `bottom_right`, or at
    `query_offset[b] + i`, an int64 tensor of one element or one for each batch. `key_lengths` is an
    int64 tensor of the same kind: the keys from there on are padding. `sinks` has one logit for
    each query head (or one for all), which takes part in the softmax and brings no value.

    `before` are nodes of standard operators that compute operands from tensors of the graph, under
    names of their own; `given` are the tensors they read; `also` are (name made by `before`, name
    in the graph) of further outputs of the replaced node.

    `guarded` says that the graph itself turns rows without any key into zeros. `score_shapes` are
    (tensor, start, end, rank) of the Shape nodes that look at dimensions `start:end` of scores of
    that rank. `unquantized` are outputs of DequantizeLinear whose rounding the operator leaves out.
    `batch_multiple` divides the batch (windows that were folded into it).
    With `averaged`, rows that the masks leave without any key are the mean of V.
    `notes` are remarks for the report. `proof` is the largest error of the proof, relative to the
    largest value of the output.
    """

    name: str
    scope: str
    matcher: str
    query: Operand
    key: Operand
    value: Operand
    output: str
    scale: float
    element_type: int
    nodes: tuple[str, ...]
    masks: tuple[Mask, ...] = ()
    causal: bool = False
    left_window: int = -1
    right_window: int = -1
    softcap: float = 0.0
    group: int = 1
    q_heads: int | None = None
    kv_heads: int | None = None
    q_length: int | None = None
    k_length: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    batch: int | None = None
    guarded: bool = False
    result: tuple[Step, ...] = ()
    bottom_right: bool = False
    query_offset: str = ""
    key_lengths: str = ""
    sinks: Operand | None = None
    before: tuple[NodeProto, ...] = ()
    given: tuple[Given, ...] = ()
    also: tuple[tuple[str, str], ...] = ()
    score_shapes: tuple[tuple[str, int, int | None, int], ...] = ()
    unquantized: tuple[str, ...] = ()
    batch_multiple: int = 1
    averaged: bool = False
    notes: tuple[str, ...] = ()
    proof: float | None = None

    @property
    def output_type(self) -> int:
        """The ONNX data type of `output`."""
        return next((s.to for s in self.result if isinstance(s, Cast)), self.element_type)

    @property
    def mask(self) -> str | None:
        """The kinds of mask the site carries, as one word for reports: None, "additive", ..."""
        words = {"add": "additive", "times": "factor", "over": "factor"}
        kinds = {words.get(mask.kind, "boolean") for mask in self.masks}
        return "+".join(sorted(kinds)) or None

    def to_json(self) -> dict[str, object]:
        """The stable fields of `sparsify inspect --json`."""
        return {
            "name": self.name,
            "scope": self.scope,
            "matcher": self.matcher,
            "q_heads": self.q_heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "scale": self.scale,
            "causal": self.causal,
            "left_window": self.left_window,
            "right_window": self.right_window,
            "bottom_right": self.bottom_right,
            "softcap": self.softcap,
            "sinks": self.sinks is not None,
            "mask": self.mask,
            "proof": self.proof,
            "notes": list(self.notes),
            "nodes": list(self.nodes),
        }


@dataclass(frozen=True)
class Refusal:
    """A candidate that was not taken: a stable code, a sentence, and the nodes it is about."""

    code: str
    reason: str
    scope: str
    nodes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """The stable fields of `sparsify inspect --json`."""
        return {
            "code": self.code,
            "reason": self.reason,
            "scope": self.scope,
            "nodes": list(self.nodes),
        }


@dataclass(frozen=True)
class Findings:
    """Everything found in one model: sites in graph order, and refusals."""

    sites: tuple[Site, ...] = ()
    refusals: tuple[Refusal, ...] = ()
