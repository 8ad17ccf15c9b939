"""How far a transfer of some seconds has come: bytes, rate, time left, in a few words."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from clusterddp.remote.shared.wire.rate_limit import Pace
from clusterddp.text.units import human_duration, human_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PATIENCE = 2.0  # seconds after which anything is told
_PAUSE = 0.2  # seconds between two words
_STEP = 1 << 15  # bytes that go at once where there is a rate


class Transfer:
    """Bytes to be handled by several threads, counted.

    Args:
        what: What is done with them.
        tell: Takes how far it has come, a few words each time.
        rate: Bytes a second, of all together, on the way; None for no limit.
        clock: Seconds.
    """

    def __init__(
        self,
        what: str,
        tell: Callable[[str], None],
        *,
        rate: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = self.done = 0
        self._pace = Pace(rate, clock)
        self._what, self._tell, self._clock = what, tell, clock
        self._began = self._told = clock()
        self._lock = threading.Lock()

    def expect(self, size: int) -> None:
        """So many bytes more are to come."""
        with self._lock:
            self.total += size

    def counted(self, pieces: Iterable[tuple[bytes, int]]) -> Iterator[bytes]:
        """The pieces, each counted as so many bytes when the next one is asked for."""
        for piece, size in pieces:
            if self._pace.rate:
                for start in range(0, len(piece), _STEP):
                    self._pace.wait(len(piece[start : start + _STEP]))
                    yield piece[start : start + _STEP]
            else:
                yield piece
            self.add(size)

    def add(self, size: int) -> None:
        """So many bytes are done."""
        with self._lock:
            self.done += size
            now = self._clock()
            if now - self._began < PATIENCE or now - self._told < _PAUSE:
                return
            self._told = now
            rate = max(1.0, self.done / (now - self._began))
            left = human_duration((self.total - self.done) / rate)
            of = f"{human_size(self.done)} of {human_size(self.total)}"
            self._tell(f"{self._what}: {of}, {human_size(int(rate))}/s, {left} left")
