"""What of a text from elsewhere may be shown on a terminal: nothing in it is obeyed, nothing is hidden or turned round.

Two ways, with one judgement of what is harmful: our own lines show such characters as Python writes them
(``one_line``), the lines of jobs lose them (logs/clean.py, which also has to find whole escape sequences).
"""

from __future__ import annotations

# They order anew what stands behind them: a line can read otherwise than it is. Letters of any language stay.
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
C1 = "".join(map(chr, range(0x80, 0xA0)))  # control characters, of which one begins sequences as ESC [ does
HIDDEN = frozenset({5, 6, 8})  # of the numbers in ESC [ … m: blinking, and text that is not shown
_EXTENDED = {2: 5, 5: 3}  # what follows 38, 48 and 58: so many numbers are one colour
_COLOURS = frozenset({38, 48, 58})
_MOST_NUMBERS = 64  # of a style; no terminal takes more


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


def plain_style(numbers: str) -> str:
    """The numbers between ``ESC [`` and ``m`` without those that hide text or make it blink; empty: none is left.

    A number that belongs to a colour (``38;5;8``) is none of them. A colour that is not whole ends the numbers: what
    follows it means one thing to one terminal and another to the next.
    """
    words, kept = numbers.split(";"), []
    if len(words) > _MOST_NUMBERS:
        return ""
    while words:
        first = _number(words[0])
        count = 1
        if first in _COLOURS and ":" not in words[0]:
            count = _EXTENDED.get(_number(words[1]), 0) if len(words) > 1 else 0
            if not count or len(words) < count:
                break
        if first not in HIDDEN:
            kept += words[:count]
        del words[:count]
    return ";".join(kept) or "0" * len(kept)  # an empty number is 0


def _number(word: str) -> int:
    """The number before a colon; nothing is 0, and what is longer than any that a terminal knows is -1."""
    digits = word.partition(":")[0].lstrip("0")
    return int(digits or "0") if len(digits) < 4 else -1
