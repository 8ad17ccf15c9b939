"""Short forms of texts: ``gpu[00:31]`` as an inventory spells it, ``a, b and 7 more``, ``train.py --l…/last.pt``."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from clusterddp.remote.shared.names.host_names import folded_names, folded_words
from clusterddp.remote.shared.text import shortening

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["columns", "cut_in_the_middle", "few", "folded_names", "folded_words"]


def few(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first ``most`` texts, and how many more there are: ``a, b and 7 more``, ``a; b; and 7 more``."""
    more = f"{separator.rstrip(', ')} and {len(texts) - most} more" if texts[most:] else ""
    return separator.join(texts[:most]) + more


def cut_in_the_middle(text: str, width: int) -> str:
    """Shorten a text to ``width`` terminal columns by ``…`` in its middle, as both ends say most."""
    return shortening.cut_in_the_middle(text, width, size=_columns)


def columns(text: str) -> int:
    """The number of terminal columns that a text takes."""
    return sum(map(_columns, text))


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
