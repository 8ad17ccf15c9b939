"""Makes text from elsewhere safe to show on a terminal: no control sequence works, nothing is hidden or reordered.

There are two ways, with one definition of what is harmful: our own messages show such characters as Python escapes them
(``one_line``), the lines of jobs lose them (clean.py, which also has to find whole escape sequences).
"""

from __future__ import annotations

# Characters that reorder the text after them, so that a line can read differently from what it contains.
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
C1 = "".join(map(chr, range(0x80, 0xA0)))  # control characters; one of them begins sequences as ESC [ does
HIDDEN = frozenset({5, 6, 8})  # numbers in ESC [ … m that make text blink or invisible
_COLOUR_LENGTHS = {2: 5, 5: 3}  # the number after 38, 48 or 58 → how many numbers form the colour
_COLOUR_CODES = frozenset({38, 48, 58})
_MAX_NUMBERS = 64  # in one style; no terminal takes more


def one_line(text: str) -> str:
    r"""The text with unprintable characters written as Python's escapes: ``\n``, ``\x1b``, ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(_escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    if letter.isspace() and letter not in "\n\r\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029":
        return " "
    return letter.encode("unicode_escape").decode()


def plain_style(numbers: str) -> str:
    """The numbers between ``ESC [`` and ``m`` without those that hide text or make it blink; empty if none is left.

    The numbers of a colour (``38;5;8``) are kept whole. An incomplete colour ends the result: terminals disagree on
    what follows it.
    """
    parts, kept = numbers.split(";"), []
    if len(parts) > _MAX_NUMBERS:
        return ""
    while parts:
        first = _number(parts[0])
        count = 1
        if first in _COLOUR_CODES and ":" not in parts[0]:
            count = _COLOUR_LENGTHS.get(_number(parts[1]), 0) if len(parts) > 1 else 0
            if not count or len(parts) < count:
                break
        if first not in HIDDEN:
            kept += parts[:count]
        del parts[:count]
    return ";".join(kept) or "0" * len(kept)  # an empty number is 0


def _number(text: str) -> int:
    """The number before a colon; an empty text is 0, a number longer than any that a terminal knows is -1."""
    digits = text.partition(":")[0].lstrip("0")
    return int(digits or "0") if len(digits) < 4 else -1
