"""Remove characters from hosts' text that would control the terminal; of escape sequences, only colours are kept."""

from __future__ import annotations

import re

from clusterddp.text.printable import BIDI, C1, plain_style

_CONTROLS = bytes(set(range(32)) - set(b"\t\n\x1b")) + b"\x7f"
_SUSPECT = _CONTROLS + b"\x1b"
# The control characters U+0080 to U+009F. Greedy, so that removing one cannot form another; and only from the first
# \xc2 of a row, or a line of nothing but \xc2 would take hours.
_C1 = re.compile(rb"(?<!\xc2)\xc2+[\x80-\x9f]+")
_ESC = (
    rb"\x1b(?!\[[0-9;:]*m)(?:"  # everything except colours:
    rb"\[[0-?]*[ -/]*[@-~]?"  # cursor, screen and modes
    rb"|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links, the clipboard
    rb"|[PX^_][^\x1b\n]*(?:\x1b\\)?"  # other strings for the terminal
    rb"|[ -/]*[0-~]?)"  # short ones, and a lone escape
)
_ESCAPE = re.compile(_ESC)  # begins with a byte that is found quickly, as the next two do
_ESCAPE_OR_C1 = re.compile(_ESC + rb"|\xc2\x9b[0-?]*[ -/]*[@-~]?|\xc2\x9d[^\x07\n]*\x07?")
# A style with a number that is, or may be, 5, 6 or 8 (blink, conceal); not numbers that are parts of a colour.
_NUMBER = rb"(?!0*[568][;:m])(?!0*[345]8;)[0-9:]*|0*[345]8;0*5;[0-9]*|0*[345]8;0*2;[0-9]*;[0-9]*;[0-9]*"
_HIDING = re.compile(rb"\x1b\[(?!(?:" + _NUMBER + rb")(?:;(?:" + _NUMBER + rb"))*m)([0-9;:]*)m")
_BIDI = re.compile(rb"\xe2(?:\x80[\x8e\x8f\xaa-\xae]|\x81[\xa6-\xa9])")  # all of BIDI except the Arabic mark
_ARABIC_MARK = b"\xd8\x9c"
_REMOVED = dict.fromkeys(map(ord, BIDI + C1))


def clean_text(text: str) -> str:
    """Apply ``clean`` to decoded text."""
    return clean(text.encode(errors="replace")).decode(errors="replace")


def clean(text: bytes) -> bytes:
    """Remove control characters and escapes; keep tabs, newlines, colours, and letters of any script."""
    if len(text.translate(None, _SUSPECT)) != len(text):
        has_c1_sequences = b"\xc2\x9b" in text or b"\xc2\x9d" in text
        text = (_ESCAPE_OR_C1 if has_c1_sequences else _ESCAPE).sub(b"", text).translate(None, _CONTROLS)
        text = _HIDING.sub(_without_hiding, text)
    return text if text.isascii() else _clean_letters(text)


def _clean_letters(text: bytes) -> bytes:
    """Remove non-ASCII characters that control a terminal or the text direction."""
    if b"\xc2" in text:
        text = _C1.sub(b"", text)
    # Searching for one byte is several times as fast as for two.
    may_have_bidi = (b"\x80" in text and b"\xe2\x80" in text) or (b"\x81" in text and b"\xe2\x81" in text)
    has_arabic_mark = b"\x9c" in text and _ARABIC_MARK in text
    if not has_arabic_mark and not (may_have_bidi and _BIDI.search(text)):
        return text
    # Bytes that are not UTF-8 are replaced here, so that the rest cannot join into such a character again.
    return text.decode(errors="replace").translate(_REMOVED).encode()


def _without_hiding(style: re.Match[bytes]) -> bytes:
    """A style without the numbers that hide text."""
    style_left = plain_style(style[1].decode())
    return b"\x1b[%sm" % style_left.encode() if style_left else b""
