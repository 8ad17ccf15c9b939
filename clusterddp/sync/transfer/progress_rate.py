"""Reports the progress of a longer transfer: bytes, rate, time left, in a few words."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from clusterddp.remote.shared.wire.rate_limit import RateLimit
from clusterddp.text.units import human_duration, human_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PROGRESS_DELAY = 2.0  # seconds after which progress is reported
_PROGRESS_INTERVAL = 0.2  # seconds between two reports
_PIECE = 1 << 15  # bytes sent at once if the rate is limited


class Transfer:
    """Counts the bytes that several threads transfer, and limits their rate.

    ``what`` names the work; ``notify`` is called with the progress; ``rate`` limits all threads together, in bytes per
    second; ``clock`` returns seconds.
    """

    def __init__(
        self,
        what: str,
        notify: Callable[[str], None],
        *,
        rate: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = self.done = 0
        self._pace = RateLimit(rate, clock)
        self._what, self._notify, self._clock = what, notify, clock
        self._began = self._last_report = clock()
        self._lock = threading.Lock()

    def expect(self, size: int) -> None:
        """Add bytes to the expected total."""
        with self._lock:
            self.total += size

    def counted(self, pieces: Iterable[tuple[bytes, int]]) -> Iterator[bytes]:
        """Yield the pieces; each is counted, by its number, when the next one is requested."""
        for piece, size in pieces:
            if self._pace.rate:
                for start in range(0, len(piece), _PIECE):
                    self._pace.wait(len(piece[start : start + _PIECE]))
                    yield piece[start : start + _PIECE]
            else:
                yield piece
            self.add(size)

    def add(self, size: int) -> None:
        """Count bytes as transferred."""
        with self._lock:
            self.done += size
            now = self._clock()
            if now - self._began < PROGRESS_DELAY or now - self._last_report < _PROGRESS_INTERVAL:
                return
            self._last_report = now
            rate = max(1.0, self.done / (now - self._began))
            left = human_duration((self.total - self.done) / rate)
            of = f"{human_size(self.done)} of {human_size(self.total)}"
            self._notify(f"{self._what}: {of}, {human_size(int(rate))}/s, {left} left")
