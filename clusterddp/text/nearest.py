"""Finds the known name that a mistyped one resembles: at most one letter off, from six letters on two."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_LENGTH = 60  # letters; a longer text is no misspelt name


def nearest(name: str, known: Iterable[str]) -> str:
    """The closest of the known names; empty if none is close.

    One letter added, left out or replaced, or two neighbours exchanged, counts as one.
    """
    max_distance = 2 if len(name) >= 6 else 1
    if not 2 <= len(name) <= _MAX_LENGTH:
        return ""
    candidates = [candidate for candidate in known if abs(len(candidate) - len(name)) <= max_distance]
    distances = [(edit_distance(name, candidate), candidate) for candidate in candidates]
    close = [(letters_off, candidate) for letters_off, candidate in distances if letters_off <= max_distance]
    return min(close, key=lambda pair: pair[0])[1] if close else ""


def edit_distance(first: str, second: str) -> int:
    """The Damerau-Levenshtein distance: letters left out, added, replaced or exchanged with their neighbours."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        earlier, before, row = before, row, [i]
        for j, other in enumerate(second, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == second[j - 2] and other == first[i - 2]:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return row[-1]
