"""The results as a document."""

import importlib.metadata

from benchmarks.document import made_by
from benchmarks.zoo.results import STATUSES, Pairs, tables, totals

NOTE = """# Coverage

Tiny models with random weights, exported by torch from the code that people export, and
rewritten exactly. "Promised" are the attentions that the configuration names: layers x (self +
cross). A file is complete when every promised attention is replaced and every output agrees with
ONNX Runtime on the original, at two sets of sizes, with padding, without the native library and
with it. The worst error, of the files that agree, is the relative L2 norm of an output's error.
More than 1e-4 (float16: 1e-2; int8: 2e-2; QDQ, which rounds scores and probabilities to eight bits
where the operator does not: 1e-1) is wrong, unless the original differs from itself by half as much
at another optimisation level.
"""


def document(pairs: Pairs) -> str:
    """The whole file."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("torch", "transformers", "diffusers", "onnxscript")
    )
    meanings = "\n".join(f"* {status}: {meaning}" for status, meaning in STATUSES.items())
    parts = [NOTE, f"{made_by()}; {versions}.", totals([r for _, r in pairs]) + ".", meanings]
    return (
        "\n\n".join(part.strip() for part in [*parts, *(t.markdown() for t in tables(pairs))])
        + "\n"
    )
