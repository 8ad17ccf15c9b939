"""Which lines of an agent only follow a signal of ours, or torchrun's own end of its workers, and are hidden.

The events record how long the agent's output was when such an end began (``agent_bytes``): when it was ordered to stop,
when a worker failed, or when the last worker ended. Lines after that, until the next start of the workers, are hidden.
clusterddp's own lines never are.
"""

import os
import re
from typing import List, Optional, Set, Tuple

from ..shared.run.event_schema import STOPPING, WORKER_EXITED, WORKER_STARTED
from ..spool.events import read_events

# The agent writes this before the worker gets the signal, and so before our event.
_SIGNALS = re.compile(rb"Sending process \d+ closing signal ")
_OURS = b"clusterddp: "


class Teardowns:
    """The ends of the workers on one node, from its events file."""

    def __init__(self, events: str) -> None:
        self._events, self._size = events, -1
        self._found: List[Tuple[int, Optional[int]]] = []

    def hides(self, offset: int, line: bytes) -> bool:
        """Whether a line that begins at ``offset`` belongs to an end of the workers."""
        if line.startswith(_OURS):
            return False
        self._refresh()
        ends = (begin <= offset and (end is None or offset < end) for begin, end in self._found)
        return any(ends) or bool(_SIGNALS.search(line))

    def _refresh(self) -> None:
        try:
            size = os.stat(self._events).st_size
        except FileNotFoundError:  # nothing was written yet
            return
        if size != self._size:
            self._size, self._found = size, _teardowns(self._events)


def _teardowns(path: str) -> List[Tuple[int, Optional[int]]]:
    """The ranges of the agent's output to hide: first offset and the offset after the last, None where it is open."""
    found: List[Tuple[int, Optional[int]]] = []
    begin: Optional[int] = None
    live: Set[int] = set()
    for event in read_events(path):
        kind, at = event.kind, event.agent_bytes
        if kind == WORKER_STARTED:
            if begin is not None and at is not None:
                found.append((begin, at))
                begin = None
            live.add(event.local_rank)
        elif kind == WORKER_EXITED:
            live.discard(event.local_rank)
        over = kind == STOPPING or (kind == WORKER_EXITED and (event.exit_code or not live))
        if over and begin is None:
            begin = at
    return found if begin is None else [*found, (begin, None)]
