"""What a supervisor tells its fence, and hears of it: leases, over two pipes.

A lease says until when the node's part may go on, by the boot clock. It is renewed at each turn of the supervisor's
loop, behind run control's own turn, so it ends by itself where the loop stands still, whatever holds it up.
"""

import os
import struct
from typing import NamedTuple, Optional

from ..system.clock import boot_clock

FOREVER = float("inf")
RENEW = 0.2  # seconds between renewals
FAREWELL = 2.0  # seconds for the fence to end before us
ACTED = b"!"  # what the fence says when it ends the node's processes
_LEASE = struct.Struct("<ddq")
SIZE = _LEASE.size


class Lease(NamedTuple):
    """``term_at``: when ``agent`` (its pid; 0: none, or told already) gets SIGTERM; ``kill_at``: when all get SIGKILL.

    With 0 for both the supervisor ends by itself and the fence is to end too.
    """

    term_at: float
    kill_at: float
    agent: int = 0

    def pack(self) -> bytes:
        """As bytes of the pipe."""
        return _LEASE.pack(*self)

    @classmethod
    def of(cls, data: bytes) -> "Lease":
        """From the pipe's bytes."""
        return cls(*_LEASE.unpack(data))


ENDLESS, OVER = Lease(FOREVER, FOREVER), Lease(0.0, 0.0)


class FencePipe:
    """The supervisor's end of the pipes.

    Args:
        pid: The fence's.
        feed: Where leases go.
        told: Where its word comes from.

    Attributes:
        lease: The last one.
        acted: Since when it has ended this node's processes, by the boot clock; None: it has not.
        gone: Whether it is dead.
    """

    def __init__(self, pid: int, feed: int, told: int) -> None:
        self.pid, self.feed, self.told = pid, feed, told
        self.lease = ENDLESS
        self.acted: Optional[float] = None
        self.gone = False
        self._renewed = 0.0
        for handle in (feed, told):
            os.set_blocking(handle, False)

    def renew(self, lease: Lease) -> None:
        """Let the node's part go on so long; the newest lease holds."""
        now = boot_clock()
        hurried = lease.kill_at < self.lease.kill_at or lease.agent != self.lease.agent
        if hurried or now - self._renewed >= RENEW:
            self._renewed, self.lease = now, lease
            self._say(lease)
        self._listen()

    def begin(self) -> None:
        """Another attempt begins: what it did ended an earlier one."""
        self._listen()
        self.acted = None

    def release(self) -> None:
        """We end: it ends before us."""
        self._say(OVER)
        os.close(self.feed)
        deadline = boot_clock() + FAREWELL
        os.set_blocking(self.told, True)
        import select

        while not self.gone and boot_clock() < deadline:
            if select.select([self.told], [], [], 0.1)[0]:
                self._listen()

    def _say(self, lease: Lease) -> None:
        try:
            os.write(self.feed, lease.pack())
        except BlockingIOError:  # it has stood still for minutes: what it reads then is older, and ends us
            pass
        except OSError:
            self.gone = True

    def _listen(self) -> None:
        try:
            data = os.read(self.told, 64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.acted = self.acted or boot_clock()
        else:
            self.gone = True
