"""The times of a worker's lines, such that no line is earlier than one written before it, on either stream.

The time index notes each file separately, ten times a second, with the time of its last growth. So of two lines on
different streams the first can get the later time, when its file grew again before the next look. The order marks
(logs/order_marks.py) record which was first. So a line gets the later of two times: that of its own file's index, and
that of the other file's content as of the last mark before the line. This depends on the files alone: the time is the
same for every reader, wherever it begins to read.
"""

import time
from typing import Optional, Tuple

from .order_marks import OrderMarks
from .time_index import Entry, IndexReader

HOLD_LIMIT = 0.5  # seconds that a line waits for the time of one that was written before it


class WaitLimit:
    """A wait for something that may be late, for at most HOLD_LIMIT."""

    def __init__(self) -> None:
        self._since: Optional[float] = None

    def end(self) -> None:
        """End the wait: what was waited for is there."""
        self._since = None

    def should_wait(self) -> bool:
        """Whether to wait longer: for HOLD_LIMIT seconds from the first call on."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since < HOLD_LIMIT


class LineTimes:
    """The times of the lines of one of a worker's two files, with the interface of an IndexReader."""

    def __init__(self, marks: OrderMarks, own: int, indexes: Tuple[IndexReader, IndexReader]) -> None:
        self._marks, self._own, self._other = marks, own, 1 - own
        self._index, self._other_index = indexes[own], indexes[1 - own]
        self._hold = WaitLimit()
        self._complete = False

    def refresh(self) -> None:
        """Read what was added to the marks and indexes."""
        self._marks.refresh()
        self._index.refresh()
        self._other_index.refresh()

    def complete(self) -> None:
        """Complete both indexes with the files' last changes; from then on nothing is waited for."""
        self._marks.refresh()
        self._index.complete()
        self._other_index.complete()
        self._complete = True

    def covers(self, size: int) -> bool:
        """Whether all lines below the offset ``size`` have their time."""
        before = self._marks.size_before(self._other, self._marks.before(self._own, size))
        return self._index.covered >= size and self._other_index.covered >= before

    def at(self, end: int) -> Optional[Entry]:
        """The time of a line that ends at ``end``, and the offset up to which lines have it; None if not known yet."""
        entry = self._index.at(end)
        if entry is None or not self._marks:
            return entry
        marks = self._marks.before(self._own, end)
        earliest = self._time_of_other(self._marks.size_before(self._other, marks))
        if earliest is None:
            return None
        latest = max(entry[0], earliest)
        return latest, min(entry[1], self._raised_from(self._other_index.size_until(latest), marks))

    def _time_of_other(self, size: int) -> Optional[int]:
        """When the other file reached ``size``; None if that is not known yet."""
        entry = self._other_index.at(size) if size else (0, 0)
        if entry:
            self._hold.end()
            return entry[0]
        return None if not self._complete and self._hold.should_wait() else self._other_index.latest

    def _raised_from(self, other_size: int, marks: int = 0) -> int:
        """The offset after which, by the marks from number ``marks`` on, the other file exceeded ``other_size``."""
        return self._marks.size_at(self._own, max(marks, self._marks.up_to(self._other, other_size)))

    def size_before(self, time: int) -> int:
        """The size up to which all lines are older than ``time``."""
        return min(self._index.size_before(time), self._raised_from(self._other_index.size_before(time)))

    def size_until(self, time: int) -> int:
        """The size up to which no line is younger than ``time``."""
        return min(self._index.size_until(time), self._raised_from(self._other_index.size_until(time)))
