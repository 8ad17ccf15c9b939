"""Clocks: one that goes on while the machine is suspended, and that of a folder's file server."""

import os
import time
from typing import Union


def boot_clock() -> float:
    """Seconds since boot, time in suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_time() -> int:
    """When this host booted, by its clock as it is set now (ns since the epoch)."""
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def folder_time(folder: Union[bytes, int]) -> float:
    """The current time by the clock of a folder's file server; ``folder`` is a path or a descriptor. Raises OSError."""
    os.utime(folder)  # needs no test file, which a killed process would leave behind
    return os.stat(folder).st_mtime
