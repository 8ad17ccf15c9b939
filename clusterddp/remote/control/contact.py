"""Compute when a node was last in contact with a majority of its run, from echoed heartbeats. Does no I/O.

A follower sends heartbeats and its leader answers each. Every heartbeat has a number and echoes the newest number that
its sender has received on this connection. A number that is echoed proves contact at the time it was *sent*, so nothing
that was delayed in a socket, a network or a stopped process looks newer than it is. What a node may do depends on these
proofs alone:

    a leader    was in contact when the newest echoed heartbeats of more than half of the nodes were sent; only those
                count in which it said that it has a majority
    a follower  was in contact when its newest echoed heartbeat was sent, less the age of its leader's own contact

A node without contact for the fence's limit ends its part (supervisor/fence.py). A leader counts a node as lost only
when that time is certainly over. It counts from the last message it received from the node or, if that is later, from
the last time at which any other leader can have told the node of a majority (``elsewhere``). Two majorities have a node
in common, and a follower reports when another leader last told it of a majority: no other leader has proved contact
later. So those who followed a leader without a majority for a moment, in the search for one, delay nothing.

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

    def record_sent(self, now: float, *, proves: bool = True) -> int:
        """Record that a heartbeat is sent now and return its number; unless it ``proves``, its echo is no proof."""
        self.number += 1
        self._sent.append((self.number, now if proves else NEVER))
        return self.number

    def record_received(self, number: int, echo: int) -> bool:
        """Record a received heartbeat; return False for one that is repeated or was overtaken by a newer one."""
        if number <= self.received:
            return False
        self.received = number
        sent_at = NEVER
        while self._sent and self._sent[0][0] <= echo:
            sent_at = self._sent.popleft()[1]  # of the newest one: earlier ones may not have arrived
        self.proved = max(self.proved, sent_at)
        return True


class Contact:
    """The contact of one node with a majority of the run."""

    def __init__(self) -> None:
        self.proved = NEVER  # the latest time at which this node was certainly in contact with a majority
        self.elsewhere = NEVER  # no other leader was in contact with a majority later than this
        self.left = NEVER  # when another leader last told us of a majority, or we last led one

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
        """Record that another leader last told a follower of a majority ``age`` seconds ago."""
        self.elsewhere = max(self.elsewhere, now - age)

    def leave(self, time: float) -> None:
        """Record when the leader we leave last told us of a majority or, if we led, when we last had one."""
        self.left = max(self.left, time)
        self.elsewhere = max(self.elsewhere, time)


def age(now: float, time: float) -> float:
    """Return the seconds since a time, at most ``MAX_AGE``, which also stands for NEVER."""
    return min(max(0.0, now - time), MAX_AGE)
