"""Short forms of texts: ``gpu[00:31]`` as an inventory spells it, ``a, b and 7 more``, ``train.py --l…/last.pt``."""

from __future__ import annotations

import unicodedata

from clusterddp.remote.shared.names.host_names import folded_names, folded_words
from clusterddp.remote.shared.text import shortening
from clusterddp.remote.shared.text.shortening import few

__all__ = ["columns", "cut_in_the_middle", "few", "folded_names", "folded_words"]


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
