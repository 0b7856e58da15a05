"""Devices by name, or from a user's TOML file that changes numbers of one of them."""

from pathlib import Path
from typing import Any

from sparsify import plugins
from sparsify.errors import SparsifyError
from sparsify.plugins import Device
from sparsify.toml import parse_toml

SUFFIX = ".toml"


def device_named(name: str) -> Device:
    """The device of that name, or the one that a file ending in `.toml` describes.

    Raises:
        SparsifyError: an unknown device, an unreadable file, or nonsense in it.
    """
    if name.endswith(SUFFIX):
        return _from_file(Path(name))
    device: Device = plugins.get("devices", name)
    return device


def _from_file(path: Path) -> Device:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SparsifyError(f"{path}: cannot be read ({why}); check the path") from error
    given = parse_toml(text, str(path))
    like = given.pop("like", None)
    if not isinstance(like, str):
        raise SparsifyError(f'{path}: say which device it is like, as in like = "h100"')
    base: Any = _base(like, path)
    if not hasattr(base, "with_numbers"):
        raise SparsifyError(f"{path}: device {like!r} has no numbers to change; take another")
    name = given.pop("name", path.stem)
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise SparsifyError(f"{path}: the name is {name!r}; give a printable text")
    if name in plugins.names("devices"):
        raise SparsifyError(f"{path}: there is a device {name!r} already; give another name")
    changed: Device = base.with_numbers(name, given, str(path))
    return changed


def _base(like: str, path: Path) -> Device:
    try:
        device: Device = plugins.get("devices", like)
    except SparsifyError as error:
        raise SparsifyError(f"{path}: {error}") from error
    return device
