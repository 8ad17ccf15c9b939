"""Whether an operator is attached to a stopped worker of the run: then no time limit and no stall guard ends it.

The mark is a shared lock on the spool's file ``debug/attached``. A helper on each host of the run holds it, so it is
gone with the operator's connection, whatever ends that.
"""

import contextlib
import fcntl
import os
from typing import Iterator

from ..system.small_files import try_lock
from .layout import Spool

MARK = "attached"


@contextlib.contextmanager
def attention(spool: Spool) -> Iterator[None]:
    """Mark the spool's run as attended while the block runs."""
    handle = _open_mark(spool, os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def is_attended(spool: Spool) -> bool:
    """Whether an operator is attached to a worker of the run, on whatever host."""
    try:
        handle = _open_mark(spool, 0)
    except OSError:  # nobody was yet, or the spool has ended
        return False
    try:
        return not try_lock(handle, fcntl.LOCK_EX)
    finally:
        os.close(handle)


def _open_mark(spool: Spool, flags: int) -> int:
    path = os.path.join(spool.debug, MARK)
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o600)
