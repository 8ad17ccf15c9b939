"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

from clusterddp.errors import UsageError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_size(text: str) -> int:
    """Bytes from ``500MB``, ``2G``, ``1.5 GB``, ``100000``; units are decimal.

    Raises:
        UsageError: it is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", text, re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise UsageError(f"{text!r} is not a size", remedy="write it as 500MB or 2G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def human_size(size: int) -> str:
    """``1.2 GB``."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
