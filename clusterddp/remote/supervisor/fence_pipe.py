"""The pipes between a supervisor and its fence: the supervisor sends leases, the fence reports that it has acted.

A lease says until when the node's part may go on, by the boot clock. It is renewed at each turn of the supervisor's
loop, after run control's own turn, so it expires by itself if the loop hangs, for whatever reason.
"""

import os
import struct
from typing import NamedTuple, Optional

from ..rendezvous.participants import FOREVER
from ..system.clock import boot_clock

RENEW_INTERVAL = 0.2  # seconds between renewals
RELEASE_TIMEOUT = 2.0  # seconds for the fence to end before us
ACTED = b"!"  # what the fence sends when it ends the node's processes
_LEASE = struct.Struct("<ddq")
SIZE = _LEASE.size


class Lease(NamedTuple):
    """``term_at``: when ``agent`` (its pid; 0: none, or signalled already) gets SIGTERM.

    ``kill_at``: when all the node's processes get SIGKILL. Both by the boot clock.
    """

    term_at: float
    kill_at: float
    agent: int = 0

    def pack(self) -> bytes:
        """The lease as bytes for the pipe."""
        return _LEASE.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> "Lease":
        """A lease from the pipe's bytes."""
        return cls(*_LEASE.unpack(data))


ENDLESS_LEASE = Lease(FOREVER, FOREVER)
RELEASE = Lease(0.0, 0.0)  # the supervisor ends by itself, and the fence is to end too


class FencePipe:
    """The supervisor's ends of the pipes: ``feed`` for leases, ``reports`` for the fence's reports."""

    def __init__(self, pid: int, feed: int, reports: int) -> None:
        self.pid, self.feed, self.reports = pid, feed, reports
        self.lease = ENDLESS_LEASE  # the last one sent
        self.acted: Optional[float] = None  # boot clock time when the fence ended this node's processes, if it has
        self.has_ended = False  # whether the fence process has ended
        self._renewed = 0.0
        for handle in (feed, reports):
            os.set_blocking(handle, False)

    def renew(self, lease: Lease) -> None:
        """Replace the lease; it is sent at most every RENEW_INTERVAL seconds unless it shortens the time."""
        now = boot_clock()
        is_shorter = lease.kill_at < self.lease.kill_at or lease.agent != self.lease.agent
        if is_shorter or now - self._renewed >= RENEW_INTERVAL:
            self._renewed, self.lease = now, lease
            self._send(lease)
        self._read_reports()

    def begin(self) -> None:
        """Forget, at the start of another attempt, that the fence ended an earlier one."""
        self._read_reports()
        self.acted = None

    def release(self) -> None:
        """End the fence, before this process ends."""
        self._send(RELEASE)
        os.close(self.feed)
        deadline = boot_clock() + RELEASE_TIMEOUT
        os.set_blocking(self.reports, True)
        import select

        while not self.has_ended and boot_clock() < deadline:
            if select.select([self.reports], [], [], 0.1)[0]:
                self._read_reports()

    def _send(self, lease: Lease) -> None:
        try:
            os.write(self.feed, lease.pack())
        except BlockingIOError:  # it has hung for minutes: it will read older leases first, and end this node
            pass
        except OSError:
            self.has_ended = True

    def _read_reports(self) -> None:
        try:
            data = os.read(self.reports, 64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.acted = self.acted or boot_clock()
        else:
            self.has_ended = True
