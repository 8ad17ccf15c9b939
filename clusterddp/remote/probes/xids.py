"""Xid messages of NVIDIA's driver in the kernel log since this boot.

Where the kernel log may not be read (system/kernel_log.py), the answer says so: then seeing no message proves nothing.
"""

import re
import time
from typing import Dict, List, NamedTuple, Optional, Tuple

from ..shared.probes.gpu_records import Xid
from ..system.kernel_log import JOURNAL, UNREADABLE, read_ring, seconds_or_zero, start_journalctl

TIMEOUT = 20.0  # seconds; a journal of months on a slow disk
MAX_KINDS = 256  # pairs of an Xid number and a GPU
_MESSAGE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")


class KernelXids(NamedTuple):
    """The messages of this boot, and why the log could not be read (else None)."""

    xids: Tuple[Xid, ...]
    error: Optional[str] = None


class KernelLog:
    """Two running ``journalctl``: one tests whether the journal may be read, one searches it for Xid messages."""

    def __init__(self, env: Dict[str, str]) -> None:
        self._readable = start_journalctl([*JOURNAL, "-n", "1", "-o", "cat"], env, TIMEOUT)
        self._matches = start_journalctl([*JOURNAL, "-o", "short-unix", "--grep", "NVRM: Xid"], env, TIMEOUT)

    def xids(self) -> KernelXids:
        """This boot's messages, from the journal or else from the kernel's ring."""
        lines = self._read_journal()
        if lines is None:
            lines = read_ring()
        if lines is None:
            return KernelXids((), UNREADABLE)
        return KernelXids(tuple(collect(lines, time.time())))

    def _read_journal(self) -> Optional[List[Tuple[float, str]]]:
        """Times (seconds since 1970) and texts; None where the journal may not be read, or cannot search."""
        if self._readable is None or self._matches is None:
            return None
        # A user who may read only their own messages gets no error, but no message either, not even one of this boot.
        readable, found = self._readable.answer(), self._matches.answer()
        if not readable.payload.strip() or found.status not in (0, 1) or "pattern matching" in found.output:
            return None
        rows = (line.split(" ", 1) for line in found.text.splitlines())
        return [(seconds_or_zero(row[0]), row[1]) for row in rows if len(row) == 2]


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
