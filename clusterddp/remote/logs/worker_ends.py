"""Count how many workers of one node have ended so far, by its events file."""

import os

from ..shared.run.event_schema import WORKER_EXITED, of_kind
from ..spool.events import read_events


class WorkerEnds:
    """Counts ended workers; reads the events file (``events`` is its path) only when it has grown."""

    def __init__(self, events: str) -> None:
        self._events, self._size = events, -1
        self.count = 0

    def grown(self) -> bool:
        """Whether more workers have ended than at the previous call."""
        try:
            size = os.stat(self._events).st_size
        except FileNotFoundError:  # nothing was written yet
            return False
        if size == self._size:
            return False
        before = self.count
        self._size = size
        self.count = len(of_kind(read_events(self._events), WORKER_EXITED))
        return self.count > before
