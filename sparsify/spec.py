"""Patterns as users write them: `window:size=512`, perhaps with `SITE_GLOB=` before it."""

import dataclasses
import fnmatch
import types
import typing
from dataclasses import dataclass
from typing import Any

from sparsify import plugins
from sparsify.errors import SparsifyError
from sparsify.pattern import Pattern


@dataclass(frozen=True)
class PatternSpec:
    """One `--pattern`: which sites it is for, the pattern's name, and its options as written."""

    sites: str
    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options)
        return f"{self.name}:{options}" if options else self.name

    def matches(self, site: str) -> bool:
        """Whether this spec is for the named site."""
        return fnmatch.fnmatchcase(site, self.sites)


def parse_spec(text: str) -> PatternSpec:
    """Read `[SITE_GLOB=]NAME[:key=value,...]`.

    Raises:
        SparsifyError: the text has another form.
    """
    head, _, tail = text.partition(":")
    glob, equals, name = head.rpartition("=")
    if not name or (equals and not glob):
        raise SparsifyError(f"pattern {text!r} is not NAME:key=value,...; see `sparsify plugins`")
    options = []
    for part in filter(None, tail.split(",")):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise SparsifyError(f"pattern {text!r}: {part!r} is not key=value")
        options.append((key.strip(), value.strip()))
    return PatternSpec(glob or "*", name, tuple(options))


def make_pattern(spec: PatternSpec) -> Pattern:
    """Build the pattern a spec names, its options converted to the types of its fields.

    Raises:
        SparsifyError: unknown pattern or option, or a value that does not fit.
    """
    factory = plugins.get("patterns", spec.name)
    hints = typing.get_type_hints(factory)
    known = {field.name: hints[field.name] for field in dataclasses.fields(factory)}
    values: dict[str, Any] = {}
    for key, text in spec.options:
        if key not in known:
            raise SparsifyError(f"pattern {spec.name}: " + plugins.unknown("option", key, known))
        values[key] = _convert(spec.name, key, text, known[key])
    try:
        pattern: Pattern = factory(**values)
    except TypeError as error:
        raise SparsifyError(f"pattern {spec.name}: {error}; see `sparsify plugins`") from error
    return pattern


def option_texts(pattern: Pattern) -> dict[str, str]:
    """A pattern's options with their values, as a user would write them."""
    fields = dataclasses.fields(pattern)  # type: ignore[arg-type]
    return {field.name: str(getattr(pattern, field.name)) for field in fields}


def _convert(pattern: str, key: str, text: str, hint: Any) -> Any:
    """Convert an option; tuples are written with `/` between their members."""
    for kind in _alternatives(hint):
        try:
            if _is_tuple(kind):
                if "/" not in text:
                    continue
                return tuple(typing.get_args(kind)[0](part) for part in text.split("/"))
            if kind is bool:
                return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
            if kind is not type(None):
                return kind(text)
        except (ValueError, KeyError):
            continue
    wanted = " or ".join(getattr(kind, "__name__", str(kind)) for kind in _alternatives(hint))
    raise SparsifyError(f"pattern {pattern}: option {key}={text!r} is not {wanted}")


def _is_tuple(kind: Any) -> bool:
    origin: Any = typing.get_origin(kind)
    return origin is tuple


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, tuples first: a tuple is written so that nothing else fits."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return tuple(sorted(members, key=lambda kind: not _is_tuple(kind)))
    return (hint,)
