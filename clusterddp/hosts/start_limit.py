"""The time that a helper has to start, which follows how slow the login was, and how late this process itself is."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

MAX_SLOWNESS = 10.0  # a limit is extended so many times at most
USUAL_LOGIN = 3.0  # seconds that a login may take on hosts and networks that are not too busy
MAX_START_SLOWNESS = 4.0  # of a helper's start: half a minute becomes two at most
STEP = 1.0  # seconds
MAX_LATE = 60.0  # seconds of our own lateness that are not counted
NOTABLE_LATE = 5.0  # seconds of it that a message mentions


def slowness_of(seconds: float, usual: float) -> float:
    """How many times as long as usual something took, by which limits are extended; 1 at least."""
    return max(1.0, min(MAX_SLOWNESS, seconds / usual))


class StartLimit:
    """Calls ``close`` unless the block ends in time, counted from its begin or the last ``renew``.

    ``seconds`` is the usual limit; it is extended where the login was slow, for then all else there is. The time for
    which this process did not get to run is not counted, so that an answer that has arrived is read.
    """

    def __init__(self, close: Callable[[], None], seconds: float, login: float) -> None:
        self.slowness = min(MAX_START_SLOWNESS, slowness_of(login, USUAL_LOGIN))
        self.seconds = seconds * self.slowness
        self.passed = False
        self._close, self._login = close, login
        self._late, self._renewed = 0.0, False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="helper's start", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def renew(self) -> None:
        """Count anew: the host has answered something."""
        self._renewed = True

    @property
    def cause(self) -> str:
        """The likely cause of a start that took too long; empty if nothing measured tells it."""
        if self._late >= NOTABLE_LATE:
            return f"this machine is too busy: it held up this program for another {self._late:.0f} s"
        if self.slowness > 1:
            return f"its login took {self._login:.0f} s: the host, the network to it or this machine is too busy"
        return ""

    def _watch(self) -> None:
        left = self.seconds
        while left > 0:
            step, began = min(STEP, left), time.monotonic()
            if self._ended.wait(step):
                return
            late = max(0.0, time.monotonic() - began - step)
            left -= step if self._late < MAX_LATE else step + late
            self._late += late
            if self._renewed:
                self._renewed, left = False, self.seconds
        self.passed = True
        self._close()
