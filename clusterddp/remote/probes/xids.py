"""Xid messages of NVIDIA's driver in the kernel log since this boot.

The journal reaches back to the boot; where it may not be read, the kernel's own ring of recent messages may be
(``kernel.dmesg_restrict`` 0). Where neither may, the answer says so: then seeing no message proves nothing.
"""

import os
import re
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..shared.probes.gpu_records import Xid
from ..system.bounded_child import Child

TIMEOUT = 20.0  # seconds; a journal of months on a slow disk
MAX_KINDS = 256  # pairs of an Xid number and a GPU
_KERNEL_RING = "/dev/kmsg"
_MESSAGE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
_JOURNALCTL = ("journalctl", "-k", "-b", "-q", "--no-pager")


class KernelXids(NamedTuple):
    """The messages of this boot, and why the log could not be read (else None)."""

    xids: Tuple[Xid, ...]
    error: Optional[str] = None


class KernelLog:
    """Two running ``journalctl``: one tests whether the journal may be read, one searches it for Xid messages."""

    def __init__(self, env: Dict[str, str]) -> None:
        self._readable = _start_journalctl([*_JOURNALCTL, "-n", "1", "-o", "cat"], env)
        self._matches = _start_journalctl([*_JOURNALCTL, "-o", "short-unix", "--grep", "NVRM: Xid"], env)

    def xids(self) -> KernelXids:
        """This boot's messages, from the journal or else from the kernel's ring."""
        lines = self._read_journal()
        if lines is None:
            lines = read_ring()
        if lines is None:
            error = "the kernel log may not be read by this user; those of group systemd-journal or adm may"
            return KernelXids((), error)
        return KernelXids(tuple(collect(lines, time.time())))

    def _read_journal(self) -> Optional[List[Tuple[float, str]]]:
        """Times (seconds since 1970) and texts; None where the journal may not be read, or cannot search."""
        if self._readable is None or self._matches is None:
            return None
        # A user who may read only their own messages gets no error, but no message either, not even one of this boot.
        readable, found = self._readable.answer(), self._matches.answer()
        if not readable.payload.strip() or found.status not in (0, 1) or "pattern matching" in found.output:
            return None
        rows = (line.split(" ", 1) for line in found.payload.decode("utf-8", "replace").splitlines())
        return [(_seconds_or_zero(row[0]), row[1]) for row in rows if len(row) == 2]


def read_ring(path: str = _KERNEL_RING) -> Optional[List[Tuple[float, str]]]:
    """Read the kernel's recent messages with their times; None where they may not be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        offset = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return [row for record in _records(handle) for row in [_message(record, offset)] if row]
    finally:
        os.close(handle)


def collect(lines: List[Tuple[float, str]], now: float) -> List[Xid]:
    """Count messages by GPU and number, in order."""
    found: Dict[Tuple[str, int], Xid] = {}
    for when, line in lines:
        match = _MESSAGE.search(line)
        if match and (len(found) < MAX_KINDS or (match.group(1), int(match.group(2))) in found):
            key = match.group(1), int(match.group(2))
            earlier = found[key].times if key in found else 0
            ago, text = max(0, int(now - when)), (match.group(3) or "")[:200]
            found[key] = Xid(xid=key[1], bus=key[0], times=earlier + 1, seconds_ago=ago, text=text)
    return list(found.values())


def _start_journalctl(argv: List[str], env: Dict[str, str]) -> Optional[Child]:
    try:
        return Child(argv, env={**env, "LC_ALL": "C"}, timeout=TIMEOUT)
    except OSError:
        return None  # no journal on this host


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


def _message(record: bytes, offset: float) -> Optional[Tuple[float, str]]:
    """The time and text of a record; None if it is malformed."""
    head, _, text = record.decode("utf-8", "replace").split("\n", 1)[0].partition(";")
    fields = head.split(",")
    return (offset + _seconds_or_zero(fields[2]) / 1e6, text) if len(fields) > 2 else None


def _seconds_or_zero(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # a line that another program wrote
        return 0.0
