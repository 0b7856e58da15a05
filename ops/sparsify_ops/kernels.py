"""The native CPU kernel as a plugin: where its library is, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sparsify_ops
from sparsify.errors import SparsifyError

_FILES = ("libsparsify_cpu.so", "libsparsify_cpu.dylib", "libsparsify_cpu.dll")


@dataclass(frozen=True)
class CpuKernel:
    """The kernels of all our operators for CPUs, inside one ONNX Runtime custom-op library."""

    name: str = "cpu"
    operators: tuple[str, ...] = (
        "SparseAttention",
        "MeanKeyMass",
        "QuantizedMass",
        "TopKBlocks",
        "TopPBlocks",
    )
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    provider: str = "CPUExecutionProvider"

    def unavailable(self) -> str | None:
        """Say why the library can not be used and what to do about it, or None."""
        if _find() is not None:
            return None
        return (
            "the native CPU library is not part of this installation of sparsify (a build made "
            "with SPARSIFY_PURE=1 has none); reinstall onnx-sparsify without SPARSIFY_PURE, with a "
            "C++17 compiler at hand"
        )

    def library(self) -> Path:
        """Return the library file for `SessionOptions.register_custom_ops_library`."""
        found = _find()
        if found is None:
            raise SparsifyError(str(self.unavailable()))
        return found


def _find() -> Path | None:
    # An editable install has two locations: the sources, and the folder with what was compiled.
    for folder in sparsify_ops.__path__:
        for name in _FILES:
            file = Path(folder) / name
            if file.is_file():
                return file
    return None


CPU = CpuKernel()
