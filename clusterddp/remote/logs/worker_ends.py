"""The ends of one node's workers: how many have ended, and which lines of the agent are hidden because of that.

When workers end, the agent prints messages of its own that tell the user nothing. Each event that begins such an end
records how long the agent's output was (``agent_bytes``). The agent's lines from there to the next start of the workers
are hidden; clusterddp's own lines never are.
"""

import os
import re
from typing import List, Optional, Set, Tuple

from ..shared.run.event_schema import (
    STALLED_EVENT,
    STOPPING,
    WORKER_EXITED,
    WORKER_STARTED,
    NodeEvent,
    of_kind,
)
from ..spool.events import read_events

# The agent writes this before the worker gets the signal, and so before our event.
_SIGNALS = re.compile(rb"Sending process \d+ closing signal ")
_OURS = b"clusterddp: "


class WorkerEnds:
    """The ends of the workers on one node; reads the events file (``events`` is its path) only when it has grown."""

    def __init__(self, events: str) -> None:
        self._events, self._size = events, -1
        self._hidden: List[Tuple[int, Optional[int]]] = []  # ranges of offsets, as of _teardowns()
        self._count_before = 0  # at the last call of grown()
        self.count = 0  # workers that have ended
        self._stalls = 0  # of the run

    def grown(self) -> bool:
        """Whether more workers have ended than at the previous call."""
        self._refresh()
        before, self._count_before = self._count_before, self.count
        return self.count > before

    @property
    def stalls(self) -> int:
        """How often the stall guard has found the run hung so far."""
        self._refresh()
        return self._stalls

    def hides(self, offset: int, line: bytes) -> bool:
        """Whether the agent's line that begins at ``offset`` belongs to an end of the workers."""
        if line.startswith(_OURS):
            return False
        self._refresh()
        ends = (begin <= offset and (end is None or offset < end) for begin, end in self._hidden)
        return any(ends) or bool(_SIGNALS.search(line))

    def _refresh(self) -> None:
        try:
            size = os.stat(self._events).st_size
        except FileNotFoundError:  # nothing was written yet
            return
        if size != self._size:
            events = read_events(self._events)
            self._size, self._hidden = size, _teardowns(events)
            self.count = len(of_kind(events, WORKER_EXITED))
            self._stalls = len(of_kind(events, STALLED_EVENT))


def _teardowns(events: List[NodeEvent]) -> List[Tuple[int, Optional[int]]]:
    """The ranges of the agent's output to hide: first offset and the offset after the last, None where it is open."""
    found: List[Tuple[int, Optional[int]]] = []
    begin: Optional[int] = None
    live: Set[int] = set()
    for event in events:
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
