"""A rate limit that several threads share."""

import threading
import time
from typing import Callable, Optional


class RateLimit:
    """Limits all threads together to ``rate`` bytes a second (None or 0: no limit)."""

    def __init__(self, rate: Optional[float], clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate or 0.0
        self._clock, self._free = clock, clock()
        self._lock = threading.Lock()

    def seconds(self, size: int) -> float:
        """How many seconds ``size`` bytes take at this rate."""
        return size / self.rate if self.rate else 0.0

    def wait(self, size: int) -> None:
        """Wait until ``size`` further bytes may be sent."""
        if not self.rate:
            return
        with self._lock:
            begin = max(self._clock(), self._free)
            self._free = begin + self.seconds(size)
        time.sleep(max(0.0, begin - self._clock()))
