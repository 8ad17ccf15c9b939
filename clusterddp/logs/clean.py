"""Removing control characters and terminal escapes, all but colour, from hosts' text.

Not here: carriage returns and newlines; lines.py has dealt with them.
"""

from __future__ import annotations

import re

_CONTROLS = bytes(set(range(32)) - set(b"\t\n\x1b")) + b"\x7f"
_SUSPECT = _CONTROLS + b"\x1b"
_C1 = re.compile(rb"\xc2+[\x80-\x9f]+")  # the control characters U+0080 to U+009F; greedy, so that no cut makes one
_ESCAPE = re.compile(
    rb"\x1b(?!\[[0-9;:]*m)(?:"  # all but colour:
    rb"\[[0-?]*[ -/]*[@-~]?"  # cursor, screen and modes
    rb"|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links, the clipboard
    rb"|[PX^_][^\x1b\n]*(?:\x1b\\)?"  # other strings for the terminal
    rb"|[ -/]*[0-~]?)"  # short ones, and a lone escape
    rb"|\xc2\x9b[0-?]*[ -/]*[@-~]?|\xc2\x9d[^\x07\n]*\x07?"
)


def clean_text(text: str) -> str:
    """``clean`` for text that is decoded already."""
    return clean(text.encode(errors="replace")).decode(errors="replace")


def clean(text: bytes) -> bytes:
    """The text without control characters and escapes; tabs, newlines and colours stay."""
    if len(text.translate(None, _SUSPECT)) == len(text) and not (b"\xc2" in text and _C1.search(text)):
        return text
    return _C1.sub(b"", _ESCAPE.sub(b"", text).translate(None, _CONTROLS))
