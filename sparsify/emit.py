"""Writes the nodes that stand for one site: operands in the operator's layout, masks, selection.

The proof of a site and the rewriting of a model use the same code, so what was proved is what is
written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from sparsify.builder import Builder
from sparsify.empty_rows import restore_mean
from sparsify.layout import emit_steps, is_one
from sparsify.pattern import DynamicPattern, Pattern, SiteInputs
from sparsify.plugins import Operator
from sparsify.selection import emit_selection
from sparsify.site import Mask, Operand, Site

RESIDUALS = ("none", "mean", "iso")
"""What left-out keys contribute, by the operator's attribute value."""

_NEUTRAL: dict[str, tuple[object, type]] = {
    "block_indices": ([[[[-1]]]], np.int32),
    "block_count": ([[[-1]]], np.int32),
    "attn_mask": ([[True]], np.bool_),
    "attn_bias": ([[0.0]], np.float32),
    "key_lengths": ([np.iinfo(np.int64).max], np.int64),
    "sinks": ([-np.inf], np.float32),
    "query_offset": ([0], np.int64),
}


_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Choice:
    """How one site is to be computed; without a pattern every block is kept."""

    pattern: Pattern | None = None
    residual: str = "none"
    max_length: int | None = None

    @property
    def residual_block(self) -> int:
        """Keys per group of left-out keys when single columns are gathered."""
        gathers = self.pattern is not None and self.pattern.k_block == 1
        return 16 if gathers and self.residual != "none" else 0


def uses_of(site: Site, choice: Choice) -> frozenset[str]:
    """The features of the operator that a site needs."""
    flags = {
        "attn_mask": any(mask.forbids for mask in site.masks),
        "attn_bias": any(not mask.forbids for mask in site.masks),
        "causal": site.causal,
        "window": site.left_window >= 0 or site.right_window >= 0,
        "query_offset": site.bottom_right or bool(site.query_offset),
        "key_lengths": bool(site.key_lengths),
        "sinks": site.sinks is not None,
        "softcap": site.softcap > 0,
        "gqa": site.group != 1,
        "selection": choice.pattern is not None,
        "residual": choice.residual != "none",
        "iso": choice.residual == "iso",
        "gathered": choice.residual_block > 0,
    }
    return frozenset(name for name, wanted in flags.items() if wanted)


@dataclass(frozen=True)
class Emitter:
    """Writes sites into one graph whose operator body supports `uses`; shared masks once."""

    builder: Builder
    operator: Operator
    uses: frozenset[str]
    _masks: dict[object, str] = field(default_factory=dict)
    _empty: dict[object, str] = field(default_factory=dict)

    def site(self, site: Site, choice: Choice, output: str) -> None:
        """Write everything that computes `output`, the tensor that `site.output` names."""
        self.builder.nodes.extend(site.before)
        for made, name in site.also:
            self.builder.node("Identity", [made], outputs=[name])
        inputs = {name: self._operand(operand) for name, operand in _operands(site)}
        inputs |= self._mask_inputs(site, inputs["Q"])
        inputs["Q"] = self._multiplied(site, inputs["Q"])
        inputs |= self._positions(site, inputs)
        if choice.pattern is not None:
            inputs |= self._selection(site, choice.pattern, choice, inputs)
        inputs |= self._neutral(site, inputs)
        attributes = _attributes(site, choice)
        self._result(site, inputs, attributes, output)

    def score_shape(self, site: Site, start: int, end: int | None, rank: int, output: str) -> None:
        """Write `output`, the shape of scores of `rank`, from the shapes of Q and K."""
        sizes = [self._size(site.query, axis) for axis in range(3)] + [self._size(site.key, 2)]
        missing = sum(is_one(site.query.steps, axis) for axis in (0, 1))
        if rank == 3 and not missing:
            sizes = [self.builder.op("Mul", *sizes[:2]), *sizes[2:]]
        self.builder.node("Concat", sizes[missing:][start:end], {"axis": 0}, outputs=[output])

    def _size(self, operand: Operand, axis: int) -> str:
        """One size of an operand, a 1-D tensor; from the graph's tensor where a step keeps it."""
        place: int | None = axis
        for step in reversed(operand.steps):
            place = None if place is None else step.source(place)
        if place is None:
            return self.builder.dims(self._operand(operand), axis)
        return self.builder.dims(operand.tensor, place)

    def _result(
        self,
        site: Site,
        inputs: dict[str, str],
        attributes: dict[str, int | float],
        output: str,
    ) -> None:
        builder = self.builder
        result = builder.call(self.operator, inputs, attributes, self.uses)[0]
        if site.averaged:
            result = restore_mean(builder, site, inputs, result, self._empty)
        emit_steps(builder, result, site.result)
        builder.nodes[-1].output[0] = output

    def _operand(self, operand: Operand) -> str:
        return emit_steps(self.builder, operand.tensor, operand.steps)

    def _positions(self, site: Site, inputs: dict[str, str]) -> dict[str, str]:
        """Where queries stand, where keys end, and the logit that takes mass only."""
        builder, found = self.builder, {}
        if site.bottom_right:
            lengths = [builder.dims(inputs[name], 2) for name in ("K", "Q")]
            found["query_offset"] = builder.op("Sub", *lengths)
        if site.query_offset:
            found["query_offset"] = site.query_offset
        if site.key_lengths:
            found["key_lengths"] = site.key_lengths
        if site.sinks is not None:
            found["sinks"] = self._operand(site.sinks)
        return found

    # Masks --------------------------------------------------------------------------------------

    def _mask_inputs(self, site: Site, query: str) -> dict[str, str]:
        inputs = {}
        forbidding = tuple(mask for mask in site.masks if mask.forbids)
        arithmetic = tuple(m for m in site.masks if not m.forbids and not m.multiplies)
        if forbidding:
            inputs["attn_mask"] = self._combined(forbidding, "And", TensorProto.BOOL, query)
        if arithmetic:
            inputs["attn_bias"] = self._combined(arithmetic, "Add", site.element_type, query)
        return inputs

    def _multiplied(self, site: Site, query: str) -> str:
        """Q times or over what the graph multiplies or divides the scores by."""
        for mask in site.masks:
            if mask.multiplies:
                factor = self._mask(mask, site.element_type, query)
                query = self.builder.op("Mul" if mask.kind == "times" else "Div", query, factor)
        return query

    def _combined(self, masks: tuple[Mask, ...], op: str, element_type: int, query: str) -> str:
        key = (masks, element_type, query if any(mask.tiled for mask in masks) else "")
        if key not in self._masks:
            names = [self._mask(mask, element_type, query) for mask in masks if not mask.fills]
            filling = tuple(mask for mask in masks if mask.fills)
            if filling:
                names.append(self._filled(filling, element_type, query))
            self._masks[key] = self._joined(op, names)
        return self._masks[key]

    def _joined(self, op: str, names: Sequence[str]) -> str:
        result = names[0]
        for name in names[1:]:
            result = self.builder.op(op, result, name)
        return result

    def _filled(self, masks: tuple[Mask, ...], element_type: int, query: str) -> str:
        """The lowest number once where any of the masks forbids: two of them would be -inf."""
        kept = self._joined("And", [self._mask(mask, element_type, query) for mask in masks])
        zero, fill = (self._number(value, element_type) for value in (0.0, _LOWEST))
        return self.builder.op("Where", kept, zero, fill)

    def _mask(self, mask: Mask, element_type: int, query: str) -> str:
        builder, name = self.builder, self._operand(mask.operand)
        if mask.tiled:
            times = builder.op("Div", builder.dims(query, 0), builder.dims(name, 0))
            name = builder.op("Tile", name, builder.concat([times, builder.ints(1, 1, 1)], 0))
        if mask.kind == "add" or mask.multiplies:
            return self._term(mask, name, element_type)
        if mask.element_type != TensorProto.BOOL:
            name = builder.cast(name, TensorProto.BOOL)
        return name if mask.kind == "keep" else builder.op("Not", name)

    def _term(self, mask: Mask, name: str, element_type: int) -> str:
        if mask.element_type != element_type:
            name = self.builder.cast(name, element_type)
        if mask.factor == 1:
            return name
        return self.builder.op("Mul", name, self._number(mask.factor, element_type))

    def _number(self, value: float, element_type: int) -> str:
        if element_type == TensorProto.FLOAT16:
            value = max(value, float(np.finfo(np.float16).min))
        if element_type == TensorProto.BFLOAT16:
            value = max(value, float.fromhex("-0x1.fep127"))
        number = self.builder.scalar(value)
        if element_type == TensorProto.FLOAT:
            return number
        return self.builder.cast(number, element_type)

    # The rest of the inputs ---------------------------------------------------------------------

    def _selection(
        self, site: Site, pattern: Pattern, choice: Choice, inputs: dict[str, str]
    ) -> dict[str, str]:
        given = SiteInputs(
            query=inputs["Q"],
            key=inputs["K"],
            value=inputs["V"],
            scale=site.scale,
            group=site.group,
            causal=site.causal,
            element_type=site.element_type,
            query_offset=inputs.get("query_offset"),
        )
        offset = inputs.get("query_offset")
        if offset is not None:
            # one position for all batches: the last is the one that forbids least
            offset = self.builder.reduce("ReduceMax", offset, [0], keepdims=False)
        selection = emit_selection(
            pattern,
            self.builder,
            given,
            offset=0 if offset is None else offset,
            q_length=site.q_length,
            k_length=site.k_length,
            max_length=choice.max_length,
            heads=site.q_heads,
        )
        return {
            "block_indices": selection.block_indices,
            "block_count": selection.block_count,
        }

    def _neutral(self, site: Site, inputs: dict[str, str]) -> dict[str, str]:
        wanted = {name for name in self.uses & _NEUTRAL.keys() if name not in inputs}
        if "selection" in self.uses and "block_indices" not in inputs:
            wanted |= {"block_indices", "block_count"}
        neutral = {}
        for name in sorted(wanted):
            value, dtype = _NEUTRAL[name]
            constant = self.builder.constant(value, dtype)  # type: ignore[arg-type]
            if dtype is np.float32 and site.element_type != TensorProto.FLOAT:
                constant = self.builder.cast(constant, site.element_type)
            neutral[name] = constant
        return neutral


def _operands(site: Site) -> list[tuple[str, Operand]]:
    return [("Q", site.query), ("K", site.key), ("V", site.value)]


def _attributes(site: Site, choice: Choice) -> dict[str, int | float]:
    pattern = choice.pattern
    return {
        "q_block": pattern.q_block if pattern else 64,
        "k_block": pattern.k_block if pattern else 64,
        "scale": float(site.scale),
        "softcap": float(site.softcap),
        "is_causal": int(site.causal),
        "left_window_size": site.left_window,
        "right_window_size": site.right_window,
        "residual": RESIDUALS.index(choice.residual),
        "residual_block": choice.residual_block,
    }


def is_dynamic(pattern: Pattern | None) -> bool:
    """Whether a pattern's selection depends on the data."""
    return isinstance(pattern, DynamicPattern)
