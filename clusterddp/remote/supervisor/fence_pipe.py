"""The pipes between a supervisor and its fence: the supervisor sends leases, the fence reports that it has acted.

A lease says until when the node's part may go on, by the boot clock. It is renewed at each turn of the supervisor's
loop, after run control's own turn, so it expires by itself if the loop hangs, for whatever reason.
"""

import os
import struct
from typing import NamedTuple, Optional

from ..system.clock import boot_clock

FOREVER = float("inf")
RENEW = 0.2  # seconds between renewals
FAREWELL = 2.0  # seconds for the fence to end before us
ACTED = b"!"  # what the fence sends when it ends the node's processes
_LEASE = struct.Struct("<ddq")
SIZE = _LEASE.size


class Lease(NamedTuple):
    """``term_at``: when ``agent`` (its pid; 0: none, or signalled already) gets SIGTERM.

    ``kill_at``: when all get SIGKILL. With 0 for both the supervisor ends by itself, and the fence is to end too.
    """

    term_at: float
    kill_at: float
    agent: int = 0

    def pack(self) -> bytes:
        """The lease as bytes for the pipe."""
        return _LEASE.pack(*self)

    @classmethod
    def of(cls, data: bytes) -> "Lease":
        """A lease from the pipe's bytes."""
        return cls(*_LEASE.unpack(data))


ENDLESS, OVER = Lease(FOREVER, FOREVER), Lease(0.0, 0.0)


class FencePipe:
    """The supervisor's ends of the pipes: ``feed`` for leases, ``reports`` for the fence's reports."""

    def __init__(self, pid: int, feed: int, reports: int) -> None:
        self.pid, self.feed, self.reports = pid, feed, reports
        self.lease = ENDLESS  # the last one sent
        self.acted: Optional[float] = None  # boot clock time when the fence ended this node's processes, if it has
        self.dead = False  # whether the fence is dead
        self._renewed = 0.0
        for handle in (feed, reports):
            os.set_blocking(handle, False)

    def renew(self, lease: Lease) -> None:
        """Send a lease, which replaces the one before; at most every RENEW seconds unless it shortens the time."""
        now = boot_clock()
        hurried = lease.kill_at < self.lease.kill_at or lease.agent != self.lease.agent
        if hurried or now - self._renewed >= RENEW:
            self._renewed, self.lease = now, lease
            self._say(lease)
        self._listen()

    def begin(self) -> None:
        """Forget, at the start of another attempt, that the fence ended an earlier one."""
        self._listen()
        self.acted = None

    def release(self) -> None:
        """End the fence, before this process ends."""
        self._say(OVER)
        os.close(self.feed)
        deadline = boot_clock() + FAREWELL
        os.set_blocking(self.reports, True)
        import select

        while not self.dead and boot_clock() < deadline:
            if select.select([self.reports], [], [], 0.1)[0]:
                self._listen()

    def _say(self, lease: Lease) -> None:
        try:
            os.write(self.feed, lease.pack())
        except BlockingIOError:  # it has hung for minutes: it will read older leases first, and end this node
            pass
        except OSError:
            self.dead = True

    def _listen(self) -> None:
        try:
            data = os.read(self.reports, 64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.acted = self.acted or boot_clock()
        else:
            self.dead = True
