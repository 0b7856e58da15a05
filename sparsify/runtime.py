"""The only module that imports onnxruntime: sessions, with our libraries registered or not."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsify import plugins
from sparsify.errors import SparsifyError

Arrays = Mapping[str, npt.NDArray[Any]]

BFLOAT16_OPTION = "ai.sparsify.bfloat16"
"""The session option, "0" or "1", that our CPU library reads when it is registered."""

_INSTALL = "pip install 'onnx-sparsify[cpu]' (or [gpu])"


def onnxruntime() -> Any:
    """The onnxruntime module.

    Raises:
        SparsifyError: it is not installed; the sentence names the command that installs it.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise SparsifyError(
            f"onnxruntime is needed to run models and is not installed; run: {_INSTALL}"
        ) from error
    return ort


def library_paths(provider: str = "CPUExecutionProvider") -> list[Path]:
    """The native libraries for an execution provider, those that can be used here."""
    kernels = [kernel for _, kernel in plugins.every("kernels") if kernel.provider == provider]
    return [kernel.library() for kernel in kernels if kernel.unavailable() is None]


def library_path() -> Path:
    """The CPU library, to register with `SessionOptions.register_custom_ops_library`.

    Raises:
        SparsifyError: this is a build without it; outputs then run through their function bodies.
    """
    reasons = []
    for _, kernel in plugins.every("kernels"):
        if kernel.provider == "CPUExecutionProvider":
            reason = kernel.unavailable()
            if reason is None:
                return Path(kernel.library())
            reasons.append(reason)
    raise SparsifyError("; ".join(reasons) or "no CPU kernel is registered; reinstall sparsify")


def session(
    model: str | Path | bytes,
    *,
    library: bool = True,
    threads: int | None = None,
    optimize: bool = True,
    bfloat16: bool = False,
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> Any:
    """An onnxruntime.InferenceSession on a file or serialized model.

    `library` registers every native library that fits the providers; without it our operators run
    through their function bodies. `threads` is the intra-op thread count (default: ONNX Runtime's).
    `bfloat16` lets our CPU kernel multiply in bfloat16 where the processor can: about 1.8 times as
    fast, at an error near 0.3 % of an attention's output that no report of sparsify includes.

    Raises:
        SparsifyError: onnxruntime is missing, or it does not accept the model.
    """
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what it has to say comes as an exception
    if threads is not None:
        options.intra_op_num_threads = threads
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if bfloat16:
        options.add_session_config_entry(BFLOAT16_OPTION, "1")
    for provider in providers if library else ():
        for path in library_paths(provider):
            options.register_custom_ops_library(str(path))
    source = model if isinstance(model, bytes) else str(model)
    try:
        return ort.InferenceSession(source, options, providers=list(providers))
    except Exception as error:  # ONNX Runtime's exceptions share no public base class
        where = "the model" if isinstance(model, bytes) else model
        raise SparsifyError(f"{where}: ONNX Runtime does not load it ({_cause(error)})") from error


def run(active: Any, feeds: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Run a session on named inputs; outputs by name.

    Raises:
        SparsifyError: ONNX Runtime fails on these inputs.
    """
    wanted = [output.name for output in active.get_outputs()]
    try:
        results = active.run(wanted, dict(feeds))
    except Exception as error:  # as above
        shapes = ", ".join(f"{name} {list(np.shape(value))}" for name, value in feeds.items())
        raise SparsifyError(f"ONNX Runtime fails on inputs {shapes} ({_cause(error)})") from error
    return dict(zip(wanted, results, strict=True))


def _cause(error: Exception) -> str:
    """The first line of ONNX Runtime's message, without its code."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", lines[0])
