"""The process that touches a run's marker (live_runs.py), so that a hanging file server stops it, not the supervisor.

There is one a node as long as the run lives, so it imports next to nothing.
"""

import os
import select
import sys
import time
from typing import List, Optional

from .lock_owner import is_alive

BEAT = 15.0  # seconds
_LOOK = 1.0  # seconds between two looks at the supervisor where the kernel cannot tell of its end


def main(argv: List[str]) -> int:
    """Beat until the supervisor has ended. ``argv``: the marker, the supervisor's pid, its start in ticks."""
    marker, pid, ticks = os.fsencode(argv[0]), int(argv[1]), int(argv[2])
    end = _end_of(pid)
    while is_alive(pid, ticks):
        try:
            touch(marker)
        except OSError:  # full, gone, or not to be reached at the moment
            pass
        _wait(end, pid, ticks)
    remove(marker)
    return 0


def _end_of(pid: int) -> Optional[int]:
    """A descriptor that can be read when the process ends; None where Python or the kernel has none."""
    try:
        return int(os.pidfd_open(pid)) if sys.version_info >= (3, 9) else None
    except (OSError, AttributeError):
        return None


def _wait(end: Optional[int], pid: int, ticks: int) -> None:
    if end is not None:
        select.select([end], [], [], BEAT)
        return
    deadline = time.monotonic() + BEAT
    while time.monotonic() < deadline and is_alive(pid, ticks):
        time.sleep(_LOOK)


def touch(path: bytes) -> None:
    """Make a marker, or its beat. It is empty, and whoever sees the folder may know of the run."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        os.utime(handle)
    finally:
        os.close(handle)


def remove(path: bytes) -> None:
    """Take a marker away."""
    try:
        os.unlink(path)
    except OSError:  # gone already, or for another to remove
        pass
