"""Writes the nodes that stand for one site: operands in the operator's layout, masks, selection.

The proof of a site and the rewriting of a model use the same code, so what was proved is what is
written.
"""

from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from sparsify.builder import Attribute, Builder
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

    def site(self, site: Site, choice: Choice, output: str) -> None:
        """Write everything that computes `output`, the tensor that `site.output` names."""
        inputs = {name: self._operand(operand) for name, operand in _operands(site)}
        inputs |= self._mask_inputs(site)
        if choice.pattern is not None:
            inputs |= self._selection(site, choice.pattern, choice, inputs)
        inputs |= self._neutral(site, inputs)
        attributes = _attributes(site, choice)
        # every input is named, "" where it is left out: onnx.reference wants the full list
        ordered = [inputs.get(name, "") for name in self.operator.inputs]
        self._result(site, ordered, attributes, output)

    def score_shape(self, site: Site, start: int, end: int | None, output: str) -> None:
        """Write `output`, the shape of the scores, from the shapes of Q and K."""
        sizes = [self._size(site.query, axis) for axis in range(3)] + [self._size(site.key, 2)]
        wanted = sizes[len(site.output_squeeze) :][start:end]
        self.builder.node("Concat", wanted, {"axis": 0}, outputs=[output])

    def _size(self, operand: Operand, axis: int) -> str:
        """One size of an operand, a 1-D tensor."""
        if axis in operand.unsqueeze:
            return self.builder.ints(1)
        axis -= len(operand.unsqueeze)
        return self.builder.dims(operand.tensor, operand.perm[axis] if operand.perm else axis)

    def _result(
        self, site: Site, inputs: list[str], attributes: dict[str, Attribute], output: str
    ) -> None:
        builder, plain = self.builder, not site.output_squeeze and not site.merge_heads
        result = output if plain else builder.fresh("attended")
        name, domain = self.operator.name, self.operator.domain
        builder.node(name, inputs, attributes, outputs=[result], domain=domain)
        if site.merge_heads:
            rows = builder.transpose(result, (0, 2, 1, 3))
            builder.node("Reshape", [rows, builder.ints(0, 0, -1)], outputs=[output])
        elif site.output_squeeze:
            squeezed = builder.squeeze(result, site.output_squeeze)
            builder.nodes[-1].output[0] = output
            assert squeezed != output

    def _operand(self, operand: Operand) -> str:
        builder, name = self.builder, operand.tensor
        if operand.split_heads:
            name = builder.reshape(name, (0, 0, operand.split_heads, -1))
        if operand.perm:
            name = builder.transpose(name, operand.perm)
        if operand.unsqueeze:
            name = builder.unsqueeze(name, operand.unsqueeze)
        return name

    # Masks --------------------------------------------------------------------------------------

    def _mask_inputs(self, site: Site) -> dict[str, str]:
        inputs = {}
        forbidding = tuple(mask for mask in site.masks if mask.forbids)
        arithmetic = tuple(mask for mask in site.masks if not mask.forbids)
        if forbidding:
            inputs["attn_mask"] = self._combined(forbidding, "And", TensorProto.BOOL)
        if arithmetic:
            inputs["attn_bias"] = self._combined(arithmetic, "Add", site.element_type)
        return inputs

    def _combined(self, masks: tuple[Mask, ...], op: str, element_type: int) -> str:
        key = (masks, element_type)
        if key not in self._masks:
            names = [self._mask(mask, element_type) for mask in masks]
            result = names[0]
            for name in names[1:]:
                result = self.builder.op(op, result, name)
            self._masks[key] = result
        return self._masks[key]

    def _mask(self, mask: Mask, element_type: int) -> str:
        builder, name = self.builder, self._operand(mask.operand)
        if mask.kind == "add":
            if mask.element_type != element_type:
                name = builder.cast(name, element_type)
            return (
                name
                if mask.factor == 1
                else builder.op("Mul", name, self._number(mask.factor, element_type))
            )
        if not mask.forbids:
            zero, fill = (self._number(value, element_type) for value in (0.0, _LOWEST))
            kept, masked = (zero, fill) if mask.kind == "keep" else (fill, zero)
            return builder.op("Where", name, kept, masked)
        return name if mask.kind == "keep" else builder.op("Not", name)

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
        )
        selection = emit_selection(
            pattern,
            self.builder,
            given,
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


def _attributes(site: Site, choice: Choice) -> dict[str, Attribute]:
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
