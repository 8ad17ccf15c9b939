"""The supervisor's loop: one selector, and handlers that are called at every turn, isolated from each other.

A handler that raises is recorded as an event and called again after a pause, which grows while it fails: a disk that
cannot be read, a full table, or a bug of ours ends neither the supervisor nor the run.
"""

import os
import selectors
import signal
import time
import traceback
from typing import Any, Callable, Dict, NamedTuple, Optional, TypeVar

FIRST_PAUSE = 0.1  # seconds before a failed handler is called again, doubled each time
MAX_PAUSE = 10.0  # seconds
MAX_TRACEBACK = 2000  # characters, the last ones

T = TypeVar("T")


class HandlerFailure(NamedTuple):
    """A handler that fails: how often in a row, since when, when it is called again (monotonic), the last error."""

    times: int
    since: float
    again: float
    error: Exception


class Loop:
    """A selector loop: each descriptor's data is its callback; ``handlers`` are called at every turn.

    ``record`` appends an event.
    """

    def __init__(self, record: Callable[..., Any]) -> None:
        self.selector = selectors.DefaultSelector()
        self.handlers: Dict[str, Callable[[], object]] = {}
        self.failures: Dict[str, HandlerFailure] = {}
        self.record = record
        self._waker: Optional[int] = None

    def watch_signals(self) -> None:
        """Wake the loop at any signal, such as a child's end."""
        wake, waker = os.pipe()
        self._waker = waker
        for handle in (wake, waker):
            os.set_blocking(handle, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.selector.register(wake, selectors.EVENT_READ, lambda: os.read(wake, 512))

    def wake(self) -> None:
        """Make the loop turn now; may be called from any thread."""
        if self._waker is not None:
            try:
                os.write(self._waker, b"!")
            except BlockingIOError:  # it is awake
                pass

    def turn(self, timeout: float) -> None:
        """Wait for a descriptor, at most ``timeout`` seconds; then call all handlers."""
        for key, _ in self.guard("select", lambda: self.selector.select(timeout)) or []:
            self.guard("descriptor %d" % key.fd, key.data, pauses=False)
        for name, handler in list(self.handlers.items()):
            self.guard(name, handler)

    def guard(self, name: str, handler: Callable[[], T], *, pauses: bool = True) -> Optional[T]:
        """Call a handler and return its result; None if it raises, or has to pause because it did.

        An error is recorded under ``name``. With ``pauses=False`` the handler is called even during its pause: for a
        message, for example, which cannot be handled again later.
        """
        failed = self.failures.get(name)
        due = failed is None or time.monotonic() >= failed.again
        if pauses and not due:
            return None
        try:
            result = handler()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            if due:
                self._record_failure(name, error)
            return None
        self.failures.pop(name, None)
        return result

    def _record_failure(self, name: str, error: Exception) -> None:
        failed = self.failures.get(name)
        now = time.monotonic()
        times, since = (failed.times + 1, failed.since) if failed else (1, now)
        pause = min(MAX_PAUSE, FIRST_PAUSE * 2 ** min(times - 1, 30))
        self.failures[name] = HandlerFailure(times, since, now + pause, error)
        lines = traceback.format_exc()[-MAX_TRACEBACK:]
        self.record("handler_failed", handler=name, error=repr(error)[:300], times=times, traceback=lines)
