"""What the finder reports: attentions in a normal form (sites), and candidates left alone.

A site says `softmax(softcap(scale * Q K^T) + bias) V` in terms of tensors that stand in the graph;
it holds names only, never graph objects, so it can be printed, compared and stored.
"""

from dataclasses import dataclass

VANISHES = -1e3
"""A score this low has no weight beside any score that a model makes."""

ABSORBS = -1e8
"""A fill this low is meant as the lowest number: nothing of a score that it is added to is left."""

MAIN_SCOPE = ""
"""The scope of a site in the model's main graph."""


@dataclass(frozen=True)
class Operand:
    """One input of the operator, as a tensor of the graph and the steps that give it its layout.

    The operator wants `[batch, heads, length, dim]`. With `split_heads`, `tensor` is
    `[batch, length, heads * dim]` and is split first; then it is transposed by `perm` (empty: taken
    as it is); then dimensions of size 1 are inserted at `unsqueeze` (axes of the result).
    """

    tensor: str
    perm: tuple[int, ...] = ()
    unsqueeze: tuple[int, ...] = ()
    split_heads: int = 0


@dataclass(frozen=True)
class Mask:
    """One term that the graph applies to the scores, in the order the graph applies it.

    * `add`: `factor * tensor` is added to the scaled scores;
    * `keep`: scores where the bool `tensor` is false become `fill`;
    * `drop`: scores where the bool `tensor` is true become `fill`.

    `element_type` is the ONNX data type of `tensor`. `sizes` are its dimensions, aligned with the
    scores `[batch, heads, queries, keys]` from the right; None where open.
    """

    kind: str
    operand: Operand
    element_type: int
    factor: float = 1.0
    fill: float = float("-inf")
    sizes: tuple[int | None, ...] = ()

    @property
    def forbids(self) -> bool:
        """Whether masked scores vanish for good; else the term is arithmetic on the scores.

        With a fill from `ABSORBS` down, a row without any key is the mean of V in the original, and
        stays so by adding the lowest number. A milder fill (-1e4 is common) forbids.
        """
        return self.kind != "add" and (self.fill == float("-inf") or self.fill > ABSORBS)


@dataclass(frozen=True)
class Site:
    """One attention found in a graph, in the operator's normal form.

    `nodes` names every node that computes it, from the product with the keys to the product with
    the values. `group` is the number of query heads that share a key-value head, where K and V are
    the tensors before the graph repeats them. Heads and sizes are None where the graph does not fix
    them. `element_type` is the ONNX data type of Q. `output` is the tensor that the operator's
    result replaces, after `output_squeeze` took out dimensions that were inserted, or `merge_heads`
    made it `[batch, length, heads * dim]` again. `guarded` says that the graph itself turns rows
    without any key into zeros. `score_shapes` are (tensor, start, end) of the Shape nodes that look
    at the scores' dimensions `start:end`. `notes` are remarks for the report.
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
    output_squeeze: tuple[int, ...] = ()
    merge_heads: bool = False
    score_shapes: tuple[tuple[str, int, int | None], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def mask(self) -> str | None:
        """The kinds of mask the site carries, as one word for reports: None, "additive", ..."""
        kinds = {"additive" if mask.kind == "add" else "boolean" for mask in self.masks}
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
            "mask": self.mask,
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
