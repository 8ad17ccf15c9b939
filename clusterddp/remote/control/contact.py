"""Compute when a node was last in contact with a majority of its run, from echoed heartbeats. Does no I/O.

A follower sends heartbeats and its leader answers each. Every heartbeat has a number and echoes the newest number that
its sender has received on this connection. A number that is echoed proves contact at the time it was *sent*, so nothing
that was delayed in a socket, a network or a stopped process looks newer than it is. What a node may do depends on these
proofs alone:

    a leader    was in contact when the newest echoed heartbeats of more than half of the nodes were sent
    a follower  was in contact when its newest echoed heartbeat was sent, less the age of its leader's own contact

A node without contact for the fence's limit ends its part (supervisor/fence.py). A leader counts a node as lost only
when that time is certainly over. It counts from the last message it received from the node or, if that is later, from
the last time at which any other leader can have told the node of a majority (``elsewhere``). Two majorities have a node
in common, and a follower reports when it last heard from another leader: no other leader has proved contact later.

Times are of this host's boot clock; hosts exchange ages only.
"""

from collections import deque
from typing import Deque, Iterable, Tuple

NEVER = float("-inf")
MAX_AGE = 1e6  # seconds; also the age reported for an event that never happened
MAX_SENT = 256  # heartbeats whose time of sending is kept


class Echoes:
    """Which heartbeats of one connection were sent, received and echoed."""

    def __init__(self) -> None:
        self.number = 0  # of the last heartbeat that we sent
        self.received = 0  # of the newest heartbeat received
        self.proved = NEVER  # when we sent the newest heartbeat that has been echoed
        self._sent: Deque[Tuple[int, float]] = deque(maxlen=MAX_SENT)

    def record_sent(self, now: float) -> int:
        """Record that a heartbeat is sent now and return its number."""
        self.number += 1
        self._sent.append((self.number, now))
        return self.number

    def record_received(self, number: int, echo: int) -> bool:
        """Record a received heartbeat; return False for one that is repeated or was overtaken by a newer one."""
        if number <= self.received:
            return False
        self.received = number
        while self._sent and self._sent[0][0] <= echo:
            self.proved = self._sent.popleft()[1]
        return True


class Contact:
    """The contact of one node with a majority of the run."""

    def __init__(self) -> None:
        self.proved = NEVER  # the latest time at which this node was certainly in contact with a majority
        self.elsewhere = NEVER  # no other leader was in contact with a majority later than this
        self.left = NEVER  # when we last followed another leader, or last led a majority

    def follow(self, proved: float, age: float) -> None:
        """Record that our leader echoed a heartbeat sent at ``proved``; ``age``: seconds since its own contact."""
        self.proved = max(self.proved, proved - age)

    def count_majority(self, proved: Iterable[float], count: int, now: float) -> None:
        """Compute our contact with a majority while we lead.

        ``proved`` is when each connected node was last certainly in contact with us; ``count`` is the number of nodes
        of the run.
        """
        times = sorted([now, *proved], reverse=True)
        if 2 * len(times) > count > 0:
            self.proved = max(self.proved, times[count // 2])

    def note_elsewhere(self, now: float, age: float) -> None:
        """Record that a follower last heard from another leader ``age`` seconds ago."""
        self.elsewhere = max(self.elsewhere, now - age)

    def leave(self, received_at: float) -> None:
        """Record when the leader we leave was last heard or, if we led, when we last had a majority."""
        self.left = max(self.left, received_at)
        self.elsewhere = max(self.elsewhere, received_at)


def age(now: float, time: float) -> float:
    """Return the seconds since a time, at most ``MAX_AGE``, which also stands for NEVER."""
    return min(max(0.0, now - time), MAX_AGE)
