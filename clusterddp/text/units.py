"""Numbers, sizes in bytes, durations in seconds, lists of ranks and of names, as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from clusterddp.errors import UsageError
from clusterddp.remote.shared.text.counted import counted

_BYTES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_MAX_SECONDS = 1e10  # of a duration
_MAX_SHOWN = 60  # letters of a value in a message
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(text: str) -> int:
    """Bytes from ``500MB``, ``2G``, ``1.5 GB``, ``100000``; units are decimal. ``UsageError`` for anything else."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?)\s*([KMGT]?)B?\s*", text, re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise UsageError(f"{text!r} is not a size", remedy="write it as 500MB or 2G")
    return int(float(match[1]) * _BYTES[match[2].upper()])


def parse_duration(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``5m``, ``2h``, ``1.5d``; ``UsageError`` for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)([smhd]?)\s*", text)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else math.inf
    if seconds > _MAX_SECONDS:
        raise UsageError(f"{text!r} is not a duration", remedy="write it as 90s, 5m or 2h")
    return seconds


def duration(value: Any, *, positive: bool = False) -> float:
    """Seconds from a number, or a text for ``parse_duration``; ``UsageError`` for others, if ``positive`` for 0."""
    try:
        seconds = parse_duration(value) if isinstance(value, str) else _seconds(value)
    except UsageError:
        raise UsageError(f"{shown(value)} is no duration", remedy="write 90, 90s, 5m, 2h or 3d") from None
    if positive and not seconds:
        raise UsageError(f"{shown(value)} is no time at all", remedy="write 5m, or leave it out")
    return seconds


def _seconds(value: Any) -> float:
    """Check a number of seconds; ``UsageError`` if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_SECONDS:
        raise UsageError("no number of seconds")
    return float(value)


def shown(value: object) -> str:
    """A value's ``repr``, cut to 60 letters."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def whole_number(value: object) -> int | None:
    """A whole number, also from a text of digits as Ansible's tools write it; else None (also for True, False)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return None


def human_size(size: int) -> str:
    """A number of bytes as text, such as ``1.2 GB``."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        digits = f"{size / unit:.3g}"
        if float(digits) >= 1:
            return f"{digits} {name}"
    return counted(size, "byte")


def human_duration(seconds: float) -> str:
    """Seconds as text without spaces: ``12s``, ``3m04s``, ``2h05m``, ``3d07h``."""
    whole = round(max(0.0, seconds))
    for large, small, names in ((86400, 3600, "dh"), (3600, 60, "hm"), (60, 1, "ms")):
        if whole >= large:
            return f"{whole // large}{names[0]}{whole % large // small:02}{names[1]}"
    return f"{whole}s"


def ranks(value: object) -> tuple[int, ...] | None:
    """Parse ranks: ``0,2-5`` → (0, 2, 3, 4, 5); a number or several are taken as they are; ``all`` → None."""
    if value is None or value == "all":
        return None
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Iterable) else [value]
    found: list[int] = []
    for part in parts:
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", str(part).strip(), re.ASCII)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise UsageError(f"{shown(value)} is no list of ranks", remedy="write 0,2-5")
        found.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(found)


def split_names(value: str | Iterable[str]) -> tuple[str, ...]:
    """Split ``a,b``, or take several names; spaces around them do not count."""
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(part.strip() for part in parts if part.strip())
