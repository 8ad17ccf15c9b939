"""The log limit: keeps a node's output below a size, and notices a full disk. Called by the supervisor.

Over the limit the oldest output is deleted, by punching a hole at the head of the largest files. Offsets stay, and
readers report ``dropped`` where they meet a hole. Where the file system cannot punch holes, output goes on growing, and
an event says so.
"""

import os
import time
from typing import Dict, Iterable

from ..shared.wire.partial_files import free_bytes
from ..spool.layout import Spool
from ..system import disk_space
from .time_index import SUFFIX

LOG_LIMIT = 10**10  # bytes of output that a node keeps of one attempt
HOLE_STEP = 1 << 16  # bytes: holes end at multiples of a block of any file system
INTERVAL = 1.0  # seconds between checks
DISK_FULL, DISK_FREE = 64 << 10, 16 << 20  # bytes left below which a disk is full, and above which no longer
EVENTS_ROOM = 256 << 10  # bytes for events when the disk is full


class LogLimit:
    """Enforces the log limit of one node. No method raises OSError."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._folder = spool.logs
        self._limit = spool.plan().settings.log_limit or LOG_LIMIT
        self._heads: Dict[str, int] = {}  # file → bytes deleted at its head
        self._reported = 0  # bytes deleted as of the last event
        self._last_check = 0.0
        self._full = False
        self._can_punch = True  # the file system can punch holes
        disk_space.preallocate(spool.events_file, EVENTS_ROOM)

    def poll(self) -> None:
        """Check the disk and the limit, at most once a second."""
        now = time.monotonic()
        if now - self._last_check >= INTERVAL:
            self._last_check = now
            self._check_disk()
            self._enforce()

    def finish(self) -> None:
        """Write the final ``log_dropped`` event, if any output was dropped since the last."""
        if self.dropped > self._reported:
            self._report_dropped()

    @property
    def dropped(self) -> int:
        """How many bytes of output were deleted."""
        return sum(self._heads.values())

    def _check_disk(self) -> None:
        try:
            left = free_bytes(self._folder)
        except OSError:  # the next check tries again
            return
        if left is None:
            return
        if left < DISK_FULL and not self._full:
            self._full = True
            self._spool.event("disk_full", left=left)
        elif left > DISK_FREE:
            self._full = False

    def _enforce(self) -> None:
        """Delete the oldest output of the largest files if all together are above the limit."""
        sizes = self._sizes()
        total = sum(size - self._heads.get(name, 0) for name, size in sizes.items())
        if total <= self._limit or not self._can_punch:
            return
        max_size = fill_level([size - self._heads.get(name, 0) for name, size in sizes.items()], self._limit // 8 * 7)
        for name, size in sizes.items():
            head = (size - max(max_size, HOLE_STEP)) // HOLE_STEP * HOLE_STEP
            if self._can_punch and head > self._heads.get(name, 0):
                self._drop(name, head)
        if self.dropped >= 2 * self._reported:
            self._report_dropped()

    def _sizes(self) -> Dict[str, int]:
        found = {}
        try:
            for entry in os.scandir(self._folder):
                if not entry.name.endswith(SUFFIX):
                    found[entry.name] = entry.stat().st_size
        except OSError:
            pass  # the files seen so far count
        return found

    def _drop(self, name: str, head: int) -> None:
        """Delete a file's bytes before ``head`` by punching a hole."""
        try:
            disk_space.punch_hole(os.path.join(self._folder, name), 0, head)
        except OSError as error:
            self._can_punch = False
            self._spool.event("log_limit_failed", limit=self._limit, error=error.strerror)
            return
        self._heads[name] = head

    def _report_dropped(self) -> None:
        """Write a ``log_dropped`` event with the sum so far; the caller does so only each time the sum has doubled."""
        self._reported = self.dropped
        self._spool.event("log_dropped", bytes=self._reported, limit=self._limit)


def fill_level(sizes: Iterable[int], total: int) -> int:
    """The size to cut every larger file to, in bytes, so that all files together take ``total``."""
    ordered = sorted(sizes)
    for index, size in enumerate(ordered):
        share = total // (len(ordered) - index)
        if size > share:
            return share
        total -= size
    return ordered[-1] if ordered else 0
