"""Keeps, per query block, the key blocks to which its queries would give the most attention.

What they would give is predicted by the operator MeanKeyMass, from the mean key of every block;
TopKBlocks or TopPBlocks makes the choice.

Source: see MeanKeyMass; the kept set by cumulative mass stands in the papers that it names.

Options: exactly one of `density`, the share of the key blocks that a query block may see and keeps
(one number, or one per query head), and `tau`, the predicted mass that the smallest kept set must
reach; `q_block` and `k_block` in tokens. Under causality, a key block that a query sees in part
counts whole.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np

from sparsify import plugins
from sparsify.builder import Builder
from sparsify.errors import SparsifyError
from sparsify.pattern import Selection, SiteInputs
from sparsify.plugins import Operator
from sparsify_plugins.patterns._options import check_integer, check_share, refuse

# Densities enter as millionths, so that counts are exact integers in every runtime.
_WHOLE = 1_000_000


@dataclass(frozen=True)
class MeanKey:
    """Keep a share of the key blocks (`density`), or what reaches a predicted mass (`tau`)."""

    density: float | tuple[float, ...] | None = None
    tau: float | None = None
    q_block: int = 64
    k_block: int = 16

    def __post_init__(self) -> None:
        if (self.density is None) == (self.tau is None):
            both = f"density={self.density!r} and tau={self.tau!r}"
            raise SparsifyError(f"pattern mean_key: {both}; give exactly one of them")
        if self.tau is not None:
            check_share("mean_key", "tau", self.tau)
        if self.density == ():
            raise refuse("mean_key", "density", self.density, "one number, or one per query head")
        for share in self._densities:
            check_share("mean_key", "density", share)
        for option in ("q_block", "k_block"):
            check_integer("mean_key", option, getattr(self, option), 1)

    @property
    def _densities(self) -> tuple[float, ...]:
        if self.density is None:
            return ()
        return self.density if isinstance(self.density, tuple) else (self.density,)

    def emit(self, builder: Builder, inputs: SiteInputs) -> Selection:
        """Write the prediction, and the choice of blocks by density or by mass."""
        mass = self._mass(builder, inputs)
        if self.tau is not None:
            return _selection(builder, "TopPBlocks", {"scores": mass}, {"tau": self.tau})
        ragged = inputs.causal or len(self._densities) > 1
        counted = {"scores": mass, "count": self._count(builder, inputs, mass)}
        return _selection(builder, "TopKBlocks", counted, {}, {"ragged"} if ragged else set())

    def _mass(self, builder: Builder, inputs: SiteInputs) -> str:
        given = {"Q": inputs.query, "K": inputs.key}
        offset = inputs.query_offset if inputs.causal else None
        if offset is not None:
            given["query_offset"] = offset
        flags = {
            "causal": inputs.causal,
            "query_offset": offset is not None,
            "gqa": inputs.group != 1,
        }
        attributes = {
            "q_block": self.q_block,
            "k_block": self.k_block,
            "scale": inputs.scale,
            "is_causal": int(inputs.causal),
        }
        uses = frozenset(name for name, wanted in flags.items() if wanted)
        operator: Operator = plugins.get("operators", "MeanKeyMass")
        return builder.call(operator, given, attributes, uses)[0]

    def _count(self, builder: Builder, inputs: SiteInputs, mass: str) -> str:
        """Write how many blocks each row keeps: the share of those it sees, rounded, at least 1."""
        shares = np.array([round(share * _WHOLE) for share in self._densities], dtype=np.int64)
        millionths = builder.constant(shares.reshape(1, -1, 1), np.int64)
        half, whole = (builder.constant(n, np.int64) for n in (_WHOLE // 2, _WHOLE))
        blocks = builder.op("Mul", self._seen_blocks(builder, inputs, mass), millionths)
        rounded = builder.op("Div", builder.op("Add", blocks, half), whole)
        return builder.op("Max", rounded, builder.constant(1, np.int64))

    def _seen_blocks(self, builder: Builder, inputs: SiteInputs, mass: str) -> str:
        """Count the key blocks that each query block may see: int64 [1], [Nq] or [B, 1, Nq]."""
        k_blocks = builder.dims(mass, 3)
        if not inputs.causal:
            return k_blocks
        rows = builder.constant(self.q_block, np.int64)
        index = builder.op("Add", builder.arange(builder.dim(mass, 2)), builder.ints(1))
        end = builder.op("Min", builder.op("Mul", index, rows), builder.dims(inputs.query, 2))
        if inputs.query_offset is not None:
            end = builder.op("Add", end, builder.unsqueeze(inputs.query_offset, [1, 2]))
            end = builder.op("Max", end, builder.ints(0))
        seen = builder.ceil_div(end, builder.constant(self.k_block, np.int64))
        return builder.op("Min", seen, k_blocks)


def _selection(
    builder: Builder,
    operator: str,
    inputs: Mapping[str, str],
    attributes: Mapping[str, float],
    uses: Set[str] = frozenset(),
) -> Selection:
    chooser: Operator = plugins.get("operators", operator)
    return Selection(*builder.call(chooser, inputs, attributes, frozenset(uses)))
