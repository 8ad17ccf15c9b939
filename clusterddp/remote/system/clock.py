"""Clocks: the one that goes on while a machine sleeps, and that of a folder's file server."""

import os
import time
from typing import Union


def boot_clock() -> float:
    """Seconds since this boot, those of a suspended machine included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def folder_time(folder: Union[bytes, int]) -> float:
    """The current time by the file server's clock; ``folder`` is a path or a descriptor.

    Raises:
        OSError: nothing can be written there.
    """
    os.utime(folder)  # whoever is killed here leaves nothing
    return os.stat(folder).st_mtime
