"""The roll: the supervisor's list of its node's processes, in the spool, for whoever must find them without it.

While a supervisor lives every process of its node descends from it, whatever it does: it adopts orphans. Once it is
killed, one that has wiped its environment, closed our files and left for a session of its own is on no path but
this. Taken once a second, and never for more than a hundredth of a core.

Not here: what follows from being on it (processes/ownership.py).
"""

import json
import os
import time
from typing import List, NamedTuple, Optional, Tuple

from ..spool.layout import Spool
from ..system import procfs
from ..system.bootstrap import read_json

NAME = "roll.json"
EVERY = 1.0  # seconds between two looks
SHARE = 100  # a look of n seconds of CPU is followed by a pause of so many times n


class RollRecord(NamedTuple):
    """A roll as read: members as (pid, start ticks, session), and who adopts the orphans that we leave."""

    members: List[Tuple[int, int, int]]
    adopter: Tuple[int, int]


class Roll:
    """The supervisor's own; only it may take one."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._next = 0.0
        self._written: object = None

    def turn(self) -> None:
        """Take it again if it is time."""
        if time.monotonic() >= self._next:
            began = time.thread_time()
            self.take()
            self._next = time.monotonic() + max(EVERY, SHARE * (time.thread_time() - began))

    def take(self) -> None:
        """Write down all that descends from this process, other runs' processes and what is below them left out."""
        among, own = procfs.table(), os.getpid()
        if own not in among:
            return  # /proc is not there
        plan = self.spool.plan()
        mine = (plan["run"], plan["host"])
        inside = procfs.below([own], among, ())
        barred = {pid for pid in inside if pid != own and procfs.marks(among[pid]) not in (None, mine)}
        members = [among[pid] for pid in sorted(procfs.below([own], among, barred)) if pid in among]
        parent = among[own].parent
        value = {
            "boot": procfs.boot_identity(),
            "adopter": [parent, procfs.start_ticks(parent) or 0],
            "members": [[seen.pid, seen.ticks, seen.session] for seen in members if seen.pid != own],
        }
        if value != self._written and self._write(json.dumps(value).encode()):
            self._written = value

    def _write(self, data: bytes) -> bool:
        """Replace the file whole, without waiting for the disk: it only has to outlive this process, not the host."""
        path = self.spool.path(NAME)
        try:
            handle = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as out:
                out.write(data)
            os.replace(path + ".new", path)
        except OSError:  # the disk is full: the next look tries again
            return False
        return True


def read_roll(spool: Spool) -> Optional[RollRecord]:
    """The spool's roll, or None if there is none of this boot."""
    value = read_json(spool.path(NAME))
    if not value or value["boot"] != procfs.boot_identity():
        return None
    members = [(int(pid), int(ticks), int(session)) for pid, ticks, session in value["members"]]
    return RollRecord(members, (int(value["adopter"][0]), int(value["adopter"][1])))


def drop_roll(spool: Spool) -> None:
    """Forget it: it was proved that none of them is left."""
    try:
        os.unlink(spool.path(NAME))
    except FileNotFoundError:  # there was none
        pass
