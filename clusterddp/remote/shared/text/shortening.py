"""Shorten a text by cutting out its middle, or a list of texts by counting those behind the first. Pure."""

from typing import Callable, Sequence


def one_per_letter(_letter: str) -> int:
    """The size of a letter where characters are counted."""
    return 1


def cut_in_the_middle(text: str, most: int, tail: str = "", size: Callable[[str], int] = one_per_letter) -> str:
    """The text in at most ``most`` characters, with ``…`` in place of its middle if need be.

    An end like ``tail`` stays whole if there is room, and the middle of the rest is cut. ``size`` is the size of a
    letter, where that is not 1.
    """
    if len(_longest_beginning(text, most, size)) == len(text):
        return text
    room = most - sum(map(size, tail))
    if tail and room > 1 and text.endswith(tail):
        return cut_in_the_middle(text[: -len(tail)], room, size=size) + tail
    kept = max(0, most - 1)
    end = _longest_beginning(text[::-1], kept // 2, size)[::-1]
    return "%s…%s" % (_longest_beginning(text, kept - kept // 2, size), end)


def _longest_beginning(text: str, most: int, size: Callable[[str], int]) -> str:
    """The beginning of the text that fits."""
    if size is one_per_letter:
        return text[: max(0, most)]
    taken = 0
    for index, letter in enumerate(text):
        taken += size(letter)
        if taken > most:
            return text[:index]
    return text


def few(texts: Sequence[str], most: int) -> str:
    """Join the first ``most`` texts by commas, and count the others: ``a, b and 7 more``."""
    more = " and %d more" % (len(texts) - most) if texts[most:] else ""
    return ", ".join(texts[:most]) + more
