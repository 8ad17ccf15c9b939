"""Short forms of lists: ``gpu[00-31]``, ``a, b and 7 more``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBERED = re.compile(r"(.*?)(\d{1,9})(\D*)")


def collapsed(names: Sequence[str]) -> str:
    """The names in order, consecutive numbered ones folded as ``gpu[00-31]``."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(word for run in runs for word in _words(run))


def few(words: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first ``most`` words, and how many more there are: ``a, b and 7 more``, ``a; b; and 7 more``."""
    more = f"{separator.rstrip(', ')} and {len(words) - most} more" if words[most:] else ""
    return separator.join(words[:most]) + more


def _follows(before: str, name: str) -> bool:
    one, other = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(name)
    if not one or not other or (one[1], one[3]) != (other[1], other[3]) or int(other[2]) != int(one[2]) + 1:
        return False
    padded = one[2].startswith("0") or other[2].startswith("0")
    return len(one[2]) == len(other[2]) or not padded


def _words(run: Sequence[str]) -> Sequence[str]:
    first, last = _NUMBERED.fullmatch(run[0]), _NUMBERED.fullmatch(run[-1])
    if len(run) < 3 or not first or not last:
        return run
    return [f"{first[1]}[{first[2]}-{last[2]}]{first[3]}"]
