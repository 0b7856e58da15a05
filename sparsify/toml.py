"""Reads TOML, with errors that name the file."""

import sys
from typing import Any

from sparsify.errors import SparsifyError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse `text`, which comes from the file `where`.

    Raises:
        SparsifyError: the text is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SparsifyError(f"{where}: not TOML ({error}); see docs/devices.md") from error
