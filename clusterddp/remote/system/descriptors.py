"""This process's open files."""

import os
from typing import Container


def close_all_but(kept: Container[int]) -> None:
    """Close every descriptor that is not ``kept``: a forked process holds all that its parent had open."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the listing's own handle is closed already
                pass
