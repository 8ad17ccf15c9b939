"""The process that touches a run's marker, so that a hanging file server blocks it, and not the supervisor.

One such process runs on each node as long as the run lives, so it imports next to nothing.
"""

import os
import select
import sys
import time
from typing import List, Optional

from .lock_owner import is_alive

HEARTBEAT_INTERVAL = 15.0  # seconds between two updates of the marker's mtime
_CHECK_INTERVAL = 1.0  # seconds between two checks of the supervisor where there is no pidfd


def main(argv: List[str]) -> int:
    """Touch the marker until the supervisor has ended, then remove it.

    ``argv``: the marker's path, the supervisor's pid, its start time in ticks.
    """
    marker, pid, ticks = os.fsencode(argv[0]), int(argv[1]), int(argv[2])
    pidfd = _open_pidfd(pid)
    while is_alive(pid, ticks):
        try:
            touch(marker)
        except OSError:  # the disk is full, the folder is gone, or the server does not answer
            pass
        _wait_for_end(pidfd, pid, ticks)
    remove(marker)
    return 0


def _open_pidfd(pid: int) -> Optional[int]:
    """Return a descriptor that becomes readable when the process ends; None if Python or the kernel has no pidfds."""
    try:
        return int(os.pidfd_open(pid)) if sys.version_info >= (3, 9) else None
    except (OSError, AttributeError):
        return None


def _wait_for_end(pidfd: Optional[int], pid: int, ticks: int) -> None:
    """Wait until the process has ended, but no longer than until the next heartbeat is due."""
    if pidfd is not None:
        select.select([pidfd], [], [], HEARTBEAT_INTERVAL)
        return
    deadline = time.monotonic() + HEARTBEAT_INTERVAL
    while time.monotonic() < deadline and is_alive(pid, ticks):
        time.sleep(_CHECK_INTERVAL)


def touch(path: bytes) -> None:
    """Create a marker, or renew its heartbeat. It is an empty file that everybody who can list the folder may see."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        os.utime(handle)
    finally:
        os.close(handle)


def remove(path: bytes) -> None:
    """Remove a marker."""
    try:
        os.unlink(path)
    except OSError:  # it is gone already, or another user's
        pass
