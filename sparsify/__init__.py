"""Finds every attention in an ONNX model and replaces it with a sparse-attention operator.

`optimize` goes all the way; `find_sites`, `make_plan`, `apply_plan` and `verify` are its steps.
"""

from typing import TYPE_CHECKING, Any

from sparsify.errors import SparsifyError

if TYPE_CHECKING:
    from sparsify.api import Trial, apply, optimize
    from sparsify.find import find_sites
    from sparsify.model import Model, load
    from sparsify.plan import Decision, Plan, Request, make_plan, read_plan
    from sparsify.report import Report
    from sparsify.rewrite import apply_plan
    from sparsify.runtime import library_path, library_paths, session
    from sparsify.site import Findings, Mask, Operand, Refusal, Site
    from sparsify.timing import bench
    from sparsify.verification import OutputError, Verification, verify

__all__ = [
    "Decision",
    "Findings",
    "Mask",
    "Model",
    "Operand",
    "OutputError",
    "Plan",
    "Refusal",
    "Report",
    "Request",
    "Site",
    "SparsifyError",
    "Trial",
    "Verification",
    "apply",
    "apply_plan",
    "bench",
    "find_sites",
    "library_path",
    "library_paths",
    "load",
    "make_plan",
    "optimize",
    "read_plan",
    "session",
    "verify",
]

_HOMES = {
    "api": ("Trial", "apply", "optimize"),
    "rewrite": ("apply_plan",),
    "timing": ("bench",),
    "find": ("find_sites",),
    "model": ("Model", "load"),
    "plan": ("Decision", "Plan", "Request", "make_plan", "read_plan"),
    "report": ("Report",),
    "runtime": ("library_path", "library_paths", "session"),
    "site": ("Findings", "Mask", "Operand", "Refusal", "Site"),
    "verification": ("OutputError", "Verification", "verify"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import sparsify` itself stays light."""
    import importlib

    for module, members in _HOMES.items():
        if name in members:
            return getattr(importlib.import_module(f"sparsify.{module}"), name)
    raise AttributeError(f"module 'sparsify' has no attribute {name!r}")
