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
            self._changed.notify_all()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="stalled connections", daemon=True)
                thread.start()
                self._thread = thread

    def remove(self, connection: Writer) -> None:
        """Stop watching a connection that was closed; after the last one, returns when the thread has ended."""
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()
            thread = self._thread
            # It goes on if another connection is opened meanwhile, for as long as that is open.
            self._changed.wait_for(lambda: self._open or self._thread is not thread or thread is None)
            ended = thread if self._thread is not thread else None
        if ended is not None:
            ended.join()

    def _run(self) -> None:
        try:
            while self._wait_for_check():
                self._close_stalled()
        finally:
            self._leave()

    def _wait_for_check(self) -> bool:
        """Wait CHECK_INTERVAL seconds, or until the last connection is closed; return whether any is open."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, CHECK_INTERVAL)
            if not self._open:
                self._leave()
            return bool(self._open)

    def _leave(self) -> None:
        """Let the next connection start a new thread; this one may hold the lock."""
        with self._changed:
            if self._thread is threading.current_thread():
                self._thread = None
                self._changed.notify_all()

    def _close_stalled(self) -> None:
        with self._changed:
            connections = list(self._open)
        for connection in connections:
            connection.close_if_stalled()


WRITE_WATCHDOG = _WriteWatchdog()
