"""The clock that goes on while a machine sleeps."""

import time


def boot_clock() -> float:
    """Seconds since this boot, those of a suspended machine included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
