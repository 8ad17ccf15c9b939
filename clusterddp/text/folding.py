"""Short forms: ``gpu[00:31]`` as an inventory spells it, ``a, b and 7 more``, ``train.py --l…/last.pt``."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBERED = re.compile(r"(.*?)(\d{1,9})(\D*)")


def folded_names(names: Sequence[str], separator: str = ", ") -> str:
    """The names in order, consecutive ones folded: ``gpu[00:31]``, which ``--limit`` takes; mere numbers ``0-7``."""
    return separator.join(folded_words(names))


def folded_words(names: Sequence[str]) -> list[str]:
    """The same, a word for each range and each name outside of one."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return [word for run in runs for word in _words(run)]


def few(words: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first ``most`` words, and how many more there are: ``a, b and 7 more``, ``a; b; and 7 more``."""
    more = f"{separator.rstrip(', ')} and {len(words) - most} more" if words[most:] else ""
    return separator.join(words[:most]) + more


def cut_in_the_middle(text: str, width: int) -> str:
    """The text in ``width`` columns of a terminal, if need be with ``…`` for its middle: both ends tell most."""
    if columns(text) <= width:
        return text
    kept = max(0, width - 1)
    return f"{_fitting(text, kept - kept // 2)}…{_fitting(text[::-1], kept // 2)[::-1]}"


def columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return sum(map(_columns, text))


def _fitting(text: str, width: int) -> str:
    """The beginning of the text that fits."""
    taken = 0
    for place, letter in enumerate(text):
        taken += _columns(letter)
        if taken > width:
            return text[:place]
    return text


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


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
    if not first[1] + first[3]:
        return [f"{first[2]}-{last[2]}"]
    return [f"{first[1]}[{first[2]}:{last[2]}]{first[3]}"]
