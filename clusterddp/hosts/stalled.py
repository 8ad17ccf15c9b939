"""Close connections whose writes are stuck; the thread blocked in the write cannot do that itself."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

CHECK_INTERVAL = 5.0  # seconds between two checks


class Writer(Protocol):
    """An open connection."""

    def close_if_stalled(self) -> None:
        """Close the connection if a write has taken too long."""


class _WriteWatchdog:
    """Checks all open connections in one thread, which runs while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: weakref.WeakSet[Writer] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, connection: Writer) -> None:
        """Watch a connection until it is closed or garbage-collected."""
        with self._changed:
            self._open.add(connection)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stalled connections", daemon=True)
                self._thread.start()

    def remove(self, connection: Writer) -> None:
        """Stop watching a connection that was closed."""
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()
            thread = None if self._open else self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while self._wait_for_check():
            self._close_stalled()

    def _wait_for_check(self) -> bool:
        """Wait CHECK_INTERVAL seconds, or until the last connection is closed; return whether any is open."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, CHECK_INTERVAL)
            if not self._open:
                self._thread = None
            return bool(self._open)

    def _close_stalled(self) -> None:
        with self._changed:
            connections = list(self._open)
        for connection in connections:
            connection.close_if_stalled()


WRITE_WATCHDOG = _WriteWatchdog()
