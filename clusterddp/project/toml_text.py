"""Read TOML that may have come with a cloned project, or lie in another user's folder."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MAX_KEY_DOTS = 128  # the library's time grows with the square of a key's parts: 20,000 of them take nine seconds


def parse_toml(text: str) -> dict[str, Any]:
    """Return the document's table; raises ValueError, which says why, for whatever is none."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.partition("=")[0].count(".") > _MAX_KEY_DOTS:
            raise ValueError(f"a key has over {_MAX_KEY_DOTS} parts (at line {number})")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
