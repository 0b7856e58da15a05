"""The encoder of a T5 of the size "small": random weights, since only its time matters."""

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import transformers

WORDS = 32128
_LENGTH = 64
"""Tokens of the example that the exporter runs; the file takes any number."""


class _Encoder(torch.nn.Module):  # type: ignore[misc]
    """Token ids [batch, length] to hidden states [batch, length, 512]."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.T5Config(
            vocab_size=WORDS, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8
        )
        self.model = transformers.T5EncoderModel(config).eval()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Encode, without a mask."""
        hidden: torch.Tensor = self.model(input_ids=input_ids).last_hidden_state
        return hidden


def write_model(path: Path) -> Path:
    """Export with batch and length open."""
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Encoder(),
            (torch.zeros(1, _LENGTH, dtype=torch.int64),),
            path,
            input_names=["input_ids"],
            output_names=["hidden"],
            dynamic_axes={"input_ids": {0: "batch", 1: "length"}},
            opset_version=17,
            dynamo=False,
        )
    return path


def feeds(length: int) -> dict[str, npt.NDArray[np.int64]]:
    """One text of so many random tokens."""
    return {"input_ids": np.random.default_rng(0).integers(0, WORDS, (1, length))}
