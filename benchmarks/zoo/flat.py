"""A model of any library as a module from tensors to tensors, which is what exporters take."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from benchmarks.zoo.architectures import Architecture
from benchmarks.zoo.variants import Variant


class Flat(torch.nn.Module):  # type: ignore[misc]
    """A variant's model: inputs are tensors by position, the result is a tuple of tensors."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.variant = variant
        self.model = build(variant.row, variant.attention)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the model with its cache, if the variant has one."""
        names = [each.name for each in self.variant.inputs]
        named: dict[str, Any] = dict(zip(names, tensors, strict=True))
        if self.variant.use == "past":
            kept = [named.pop(name) for name in names if name.startswith("past_")]
            named["past_key_values"] = self._cache(kept)
            if "encoder_outputs" in named:
                named["encoder_outputs"] = (named["encoder_outputs"],)
        if self.variant.row.past is not None:
            named["use_cache"] = True
        return tuple({id(tensor): tensor for tensor in _floats(self.model(**named))}.values())

    def _cache(self, tensors: list[torch.Tensor]) -> Any:
        from transformers import DynamicCache, EncoderDecoderCache

        past = self.variant.row.past
        assert past is not None
        pairs = list(zip(tensors[::2], tensors[1::2], strict=True))
        own = DynamicCache(pairs[: past.layers], config=self.model.config)
        if past.source is None:
            return own
        return EncoderDecoderCache(own, DynamicCache(pairs[past.layers :]))


def build(row: Architecture, attention: str) -> torch.nn.Module:
    """The tiny model with random weights, always the same ones.

    Models start with weights so small that their attention hardly matters; here it matters.
    """
    torch.manual_seed(0)
    model = _made(row, attention).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.5 * parameter[0].numel() ** -0.5)
    return model


def _made(row: Architecture, attention: str) -> torch.nn.Module:
    if row.library == "diffusers":
        import diffusers

        model = getattr(diffusers, row.model)(**row.config)
        plain = diffusers.models.attention_processor.AttnProcessor()
        for part in model.modules() if attention == "eager" else ():
            if hasattr(part, "set_processor"):
                part.set_processor(plain)
        return model
    import transformers

    config = getattr(transformers, row.config_class)(**row.config)
    kind = getattr(transformers, row.model)
    make = kind.from_config if row.model == "AutoModel" else kind._from_config
    return make(config, attn_implementation=attention)


def _floats(result: Any) -> Iterator[torch.Tensor]:
    """Every float tensor in a result, its caches included."""
    if isinstance(result, torch.Tensor):
        if result.is_floating_point():
            yield result
        return
    parts: Any = ()
    if isinstance(result, Mapping):
        parts = result.values()
    elif isinstance(result, (tuple, list)):
        parts = result
    elif hasattr(result, "self_attention_cache"):
        parts = (result.self_attention_cache, result.cross_attention_cache)
    elif hasattr(result, "layers"):
        parts = [(layer.keys, layer.values) for layer in result.layers]
    for part in parts:
        yield from _floats(part)
