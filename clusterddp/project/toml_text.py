"""Read TOML that may have come with a cloned project, or lie in another user's folder."""

from __future__ import annotations

import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MAX_KEY_DOTS = 128  # the library's time grows with the square of a key's parts: 20,000 of them take nine seconds
# Strings and comments, as TOML delimits them. One without an end goes on to where the library gives up.
_TEXT = re.compile(
    r'''"""(?:[^"\\]+|\\.|"(?!""))*(?:"{3,5}|\\?\Z)|"(?:[^"\\\n]+|\\.)*"?'''
    r"""|'''.*?(?:'{3,5}|\Z)|'[^'\n]*'?|#[^\n]*""",
    re.DOTALL,
)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the document's table; raises ValueError, which says why, for whatever is none."""
    without_text = _TEXT.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(without_text.split("\n"), 1):
        if any(part.count(".") > _MAX_KEY_DOTS for part in re.split("[][{}=,]", line)):
            raise ValueError(f"a key has over {_MAX_KEY_DOTS} parts (at line {number})")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
