"""The five kinds of plugin: their contracts, and the registries that find them by entry point.

A plugin is a plain object that fits a Protocol; built-in ones come through the same entry points
as anybody's. Nothing is imported before a name is asked for.
"""

import difflib
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from onnx import FunctionProto

from sparsify.errors import SparsifyError
from sparsify.site import Refusal, Site
from sparsify.view import Scope
from sparsify.workload import Cost, Workload

log = logging.getLogger(__name__)

KINDS = ("matchers", "patterns", "operators", "kernels", "devices")


class Matcher(Protocol):
    """Finds attentions in one scope of a graph.

    For one candidate a matcher may yield several sites with the same `output`, best first: the
    first that is proved numerically is taken.
    """

    def match(self, scope: Scope) -> Iterable[Site | Refusal]:
        """Every attention, and every candidate left alone with the reason."""
        ...


class Operator(Protocol):
    """An operator of our domain: inputs, outputs, attributes and the body that specifies it."""

    @property
    def name(self) -> str: ...
    @property
    def domain(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def attributes(self) -> Mapping[str, int | float]:
        """Every attribute with its neutral value."""
        ...

    def function(self, opset: int, dtype: int, uses: frozenset[str]) -> FunctionProto:
        """The body in ops of ai.onnx `opset` for element type `dtype`, with the features used."""
        ...


class Kernel(Protocol):
    """Native implementations of operators, in a library that ONNX Runtime loads."""

    @property
    def name(self) -> str: ...
    @property
    def operators(self) -> tuple[str, ...]: ...
    @property
    def dtypes(self) -> tuple[str, ...]: ...
    @property
    def provider(self) -> str: ...
    def unavailable(self) -> str | None:
        """Why it cannot be used here and what to do about it; None when it can."""
        ...

    def library(self) -> Path:
        """The shared library's file."""
        ...


class Device(Protocol):
    """Predicts what an attention costs on a machine.

    A device may also have `dense(work: MatrixWork) -> Cost`, for the rest of a model, and
    `with_numbers(name, given, where) -> Device`, itself with numbers of a user's TOML file;
    one that measures has `calibrate() -> str`, which says where it keeps what it found.
    """

    @property
    def name(self) -> str: ...
    def cost(self, workload: Workload) -> Cost:
        """Seconds and joules of one call, selection included."""
        ...


@lru_cache(maxsize=len(KINDS))
def _entries(kind: str) -> Mapping[str, metadata.EntryPoint]:
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=f"sparsify.{kind}"):
        other = found.get(entry.name)
        if other is not None and other.value != entry.value:
            raise SparsifyError(
                f"{kind} {entry.name!r} is registered twice, by {_owner(other)} and "
                f"{_owner(entry)}; uninstall one of them"
            )
        found[entry.name] = entry
    return found


def _owner(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


def names(kind: str) -> list[str]:
    """The registered names of a kind, sorted."""
    return sorted(_entries(kind))


def owner(kind: str, name: str) -> str:
    """The distribution that registered a plugin."""
    return _owner(_entries(kind)[name])


def get(kind: str, name: str) -> Any:
    """Import one plugin.

    Raises:
        SparsifyError: no such name (with the nearest ones), or the plugin cannot be imported.
    """
    entries = _entries(kind)
    if name not in entries:
        raise SparsifyError(unknown(kind.removesuffix("s"), name, entries))
    try:
        return entries[name].load()
    except Exception as error:  # a plugin may fail in any way; say whose it is
        raise SparsifyError(
            f"{kind.removesuffix('s')} {name!r} of {owner(kind, name)} cannot be imported "
            f"({type(error).__name__}: {error}); update or uninstall it"
        ) from error


def every(kind: str) -> Iterator[tuple[str, Any]]:
    """All plugins of a kind that import; a broken one is a warning that names its distribution."""
    for name in names(kind):
        try:
            yield name, get(kind, name)
        except SparsifyError as error:
            log.warning("%s", error)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist, with what was probably meant."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(choices) or 'none'}"
    return f"no {what} is named {name!r}; {hint}"
