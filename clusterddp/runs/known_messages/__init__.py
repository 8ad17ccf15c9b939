"""Messages that failed jobs print, known by their words: the cause in plain words, and what to do about it.

To add one: a row in runs/known_messages/jobs.py or runs/known_messages/machines.py (the first that fits is taken,
runs/known_messages/jobs.py's before, so the special stand above the general), what it really prints in
tests/data/known/NAME.txt, a line in docs/known-messages.md. Tests hold the three together.
"""

from __future__ import annotations

import re

from clusterddp.runs.known_messages import jobs, machines
from clusterddp.runs.known_messages.row import KnownMessage

__all__ = ["TABLE", "KnownMessage", "find"]

TABLE = (*jobs.ROWS, *machines.ROWS)
_COMPILED = tuple((row, re.compile(row.pattern)) for row in TABLE)


def find(*texts: str) -> KnownMessage | None:
    """The row of the first of these texts that a row knows; None if none does."""
    for text in texts:
        for row, pattern in _COMPILED:
            if pattern.search(text):
                return row
    return None
