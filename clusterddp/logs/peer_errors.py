"""Hide noise of torch on a terminal: its own rank before each line, and tracebacks of lost peers. Pure.

When one rank ends, each of the others raises "Connection closed by peer", with a traceback that tells nothing about the
cause: it becomes one line. One that arrives in several pieces is shown in full.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterddp.remote.shared.verdict.failures import is_lost_peer

if TYPE_CHECKING:
    from re import Match

_TRACEBACK = re.compile(rb"(?m)^Traceback \(most recent call last\):\n((?:[ \t].*\n)+)(\S.*)$")
_OF_A_COLLECTIVE = re.compile(rb"(?i)gloo|nccl|torch\.distributed")
_CLOSED = re.compile(rb"(?i)connection (was )?(likely )?(closed|reset)|remote process")


def without_rank(rank: int | None, text: bytes) -> bytes:
    """Remove torch's ``[rank3]:`` before each line if that is the rank whose lines they are."""
    if rank is None or b"[rank" not in text:
        return text
    return re.sub(rb"(?m)^\[rank%d\]:(?: |(?=\[)|$)" % rank, b"", text)


def folded(text: bytes) -> bytes:
    """Replace each traceback of a lost peer by one line: its exception, and its number of lines."""
    if b"Traceback" not in text:  # searching with the following space as well takes 8 times as long
        return text
    return _TRACEBACK.sub(_folded, text)


def _folded(traceback: Match[bytes]) -> bytes:
    frames, error = traceback.groups()
    of_a_peer = (
        _OF_A_COLLECTIVE.search(error) and _CLOSED.search(error) and is_lost_peer(error.decode(errors="replace"))
    )
    if not of_a_peer:
        return traceback[0]
    return b"%s (its traceback of %d lines: --show-all)" % (error, frames.count(b"\n") + 2)
