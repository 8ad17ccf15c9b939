"""The kernel's messages since this boot, as far as this user may read them.

The journal reaches back to the boot; where it may not be read, the kernel's own ring of recent messages may be
(``kernel.dmesg_restrict`` 0).
"""

import os
import time
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from .bounded_child import Child

UNREADABLE = "the kernel log may not be read by this user; those of group systemd-journal or adm may"
JOURNAL = ("journalctl", "-k", "-b", "-q", "--no-pager")
_RING = "/dev/kmsg"


class LastMessages:
    """A ``journalctl`` that has been started for the last messages; ``text`` waits for it."""

    def __init__(self, env: Dict[str, str], count: int, timeout: float) -> None:
        self._count = count
        self._journal = start_journalctl([*JOURNAL, "-n", str(count), "-o", "short-iso"], env, timeout)

    def text(self) -> Optional[str]:
        """The messages, a line each; None where they may not be read."""
        # A user who may read only their own messages gets no error, but no message either, not even one of this boot.
        lines = self._journal.answer().text if self._journal else ""
        if lines.strip():
            return lines
        ring = read_ring()
        if ring is None:
            return None
        rows = ring[-self._count :]
        return "".join(
            "%s %s\n" % (time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(at)), line) for at, line in rows
        )


def start_journalctl(argv: Sequence[str], env: Dict[str, str], timeout: float) -> Optional[Child]:
    """Start ``journalctl`` without waiting; None where there is no journal."""
    try:
        return Child(list(argv), env={**env, "LC_ALL": "C"}, timeout=timeout)
    except OSError:
        return None


def read_ring(path: str = _RING) -> Optional[List[Tuple[float, str]]]:
    """Read the kernel's recent messages with their times (s since 1970); None where they may not be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        offset = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return [row for record in _records(handle) for row in [ring_message(record, offset)] if row]
    finally:
        os.close(handle)


def _records(handle: int) -> Iterator[bytes]:
    """The records of the kernel's ring, one a read: ``level,sequence,microseconds,flags;text``, then lines of keys."""
    while True:
        try:
            record = os.read(handle, 1 << 14)
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue  # the record was overwritten while being read
        if not record:
            return
        yield record


def ring_message(record: bytes, offset: float) -> Optional[Tuple[float, str]]:
    """The time and text of a record of the ring; None if it is malformed."""
    head, _, text = record.decode("utf-8", "replace").split("\n", 1)[0].partition(";")
    fields = head.split(",")
    return (offset + seconds_or_zero(fields[2]) / 1e6, text) if len(fields) > 2 else None


def seconds_or_zero(text: str) -> float:
    """A number in text; 0 where another program wrote something else."""
    try:
        return float(text)
    except ValueError:
        return 0.0
