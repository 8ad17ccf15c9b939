"""The roster: a supervisor's list of its node's processes, in the spool, to find them after the supervisor was killed.

While a supervisor lives, every process of its node descends from it: it adopts orphans. Once it is killed, a process
that has wiped its environment, closed our files and left for a session of its own can be value only by this list. It is
updated once a second, for at most a hundredth of a core.
"""

import os
import time
from typing import NamedTuple, Optional, Tuple

from ..shared.schema.fields import Fields
from ..shared.schema.json_text import read_json, to_json
from ..shared.schema.record import field, read_record, record, to_fields
from ..spool.layout import Spool
from ..system import procfs

ROSTER_FILE = "roll.json"
INTERVAL = 1.0  # seconds between two updates
PAUSE_FACTOR = 100  # an update that took n seconds of CPU is followed by a pause of this many times n


def _members(fields: Fields, name: str) -> Tuple[Tuple[int, int, int], ...]:
    return fields.items(name, lambda item: _member(item, "item"))


def _member(fields: Fields, name: str) -> Tuple[int, int, int]:
    """Read a process of the roster: pid, start ticks, session."""
    numbers = fields.numbers(name)
    if len(numbers) != 3:
        raise fields.wrong(name, numbers, "three whole numbers")
    return numbers[0], numbers[1], numbers[2]


@record
class Roster(NamedTuple):
    """What the file holds."""

    boot: str = field(Fields.text)
    adopter: Tuple[int, int] = field(Fields.pair)  # pid, start ticks: it adopts after the supervisor and its fence
    members: Tuple[Tuple[int, int, int], ...] = field(_members)  # pid, start ticks, session of each


class RosterWriter:
    """Writes the roster of the calling supervisor."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._next = 0.0
        self._written: Optional[Roster] = None

    def poll(self) -> None:
        """Update the roster if it is due."""
        if time.monotonic() >= self._next:
            began = time.thread_time()
            self.update()
            self._next = time.monotonic() + max(INTERVAL, PAUSE_FACTOR * (time.thread_time() - began))

    def update(self) -> None:
        """List all descendants of this process, without other runs' processes and their descendants."""
        table, own = procfs.snapshot(), os.getpid()
        if own not in table:
            return  # /proc is not there
        marks = (self.spool.run, self.spool.host)
        inside = procfs.subtree([own], table, ())
        unrelated = {pid for pid in inside if pid != own and procfs.run_and_host(table[pid]) not in (None, marks)}
        members = [table[pid] for pid in sorted(procfs.subtree([own], table, unrelated)) if pid in table]
        fence = table.get(table[own].parent)  # it adopts first, and may be killed too
        parent = fence.parent if fence and procfs.run_and_host(fence) == marks else table[own].parent
        roster = Roster(
            boot=procfs.boot_identity(),
            adopter=(parent, procfs.start_ticks(parent) or 0),
            members=tuple((member.pid, member.ticks, member.session) for member in members if member.pid != own),
        )
        if roster != self._written and self._write(to_json(to_fields(roster)).encode()):
            self._written = roster

    def _write(self, data: bytes) -> bool:
        """Replace the file whole, without waiting for the disk: it has to outlive this process, but not the host."""
        path = self.spool.path(ROSTER_FILE)
        try:
            handle = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as out:
                out.write(data)
            os.replace(path + ".new", path)
        except OSError:  # the disk is full: the next update tries again
            return False
        return True


def read_roster(spool: Spool) -> Optional[Roster]:
    """The spool's roster, or None if there is none of this boot."""
    value = read_json(spool.path(ROSTER_FILE))
    roster = read_record(Roster, value, "roster") if value else None
    return roster if roster and roster.boot == procfs.boot_identity() else None


def remove_roster(spool: Spool) -> None:
    """Remove the roster of a node that has no process left."""
    try:
        os.unlink(spool.path(ROSTER_FILE))
    except OSError:  # there was none; or the disk is read-only, and its boot and start times still guard against reuse
        pass
