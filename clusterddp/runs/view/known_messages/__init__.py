"""Recognise messages that failed jobs print, and give their cause in plain words and a remedy.

To add one: a row in jobs.py or machines.py here, a real sample of the message in tests/data/known/NAME.txt, and a line
in docs/known-messages.md. The first matching row wins, those of jobs.py before those of machines.py.
"""

from __future__ import annotations

import re

from clusterddp.runs.view.known_messages import jobs, machines
from clusterddp.runs.view.known_messages.row import KnownMessage

__all__ = ["TABLE", "KnownMessage", "find"]

# Letters of a text: as many as are quoted of a worker, a line and then its exception's message or the end of its stderr
# (spool/worker_traces.py). Some patterns take a time that grows with its square.
MAX_SEARCHED = 16 << 10
TABLE = (*jobs.ROWS, *machines.ROWS)
_COMPILED = tuple((row, re.compile(row.pattern)) for row in TABLE)


def find(*texts: str, own: bool = False) -> KnownMessage | None:
    """Return the row that matches the first of these texts that any row matches; None if there is none.

    ``own``: the worker failed by itself, so rows that blame another rank are left out.
    """
    for text in texts:
        for row, pattern in _COMPILED:
            if not (own and row.of_peer) and pattern.search(text, 0, MAX_SEARCHED):
                return row
    return None
