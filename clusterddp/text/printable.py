"""Text from elsewhere on one line of a terminal: nothing in it is obeyed, and nothing is hidden."""

from __future__ import annotations


def one_line(text: str) -> str:
    r"""The text with what does not print written as Python's escapes: ``\n``, ``\x1b``, ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(_shown(letter) for letter in text)


def _shown(letter: str) -> str:
    if letter.isprintable():
        return letter
    if letter.isspace() and letter not in "\n\r\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029":
        return " "
    return letter.encode("unicode_escape").decode()
