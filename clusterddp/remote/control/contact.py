"""When a node was last in contact with a majority of its run, proved by beats that come back. Pure.

A follower sends beats, its lead answers each. Every beat has a number and names the newest number that its sender has
heard on this connection. A number that comes back proves contact at the time it was *sent*, so nothing that lay in a
socket, a network or a stopped process looks newer than it is. What a node may do depends on such proofs alone:

    a lead      was in contact when the newest beats that came back from more than half of the nodes were sent
    a follower  was in contact when its newest beat that came back was sent, less the age of its lead's own contact

A node without contact for the fence's limit ends its part (supervisor/fence.py). A lead counts a node as lost only when
that time is over for certain: from the last word it heard of it, or, where that is later, from the last time at which
any other lead can have told it of a majority (``elsewhere``). Two majorities have a node in common, and who follows a
lead says when it last heard another: no other lead has proved contact later than that.

Times are of this host's boot clock; between hosts only ages travel.
"""

from collections import deque
from typing import Deque, Iterable, Tuple

NEVER = float("-inf")
OLDEST = 1e6  # seconds; the age of what has never been
KEPT = 256  # beats whose time is kept


class Echoes:
    """The beats of one connection.

    Attributes:
        number: Of our last beat.
        theirs: Of the newest beat heard.
        proved: When the newest beat of ours was sent that has come back.
    """

    def __init__(self) -> None:
        self.number = self.theirs = 0
        self.proved = NEVER
        self._sent: Deque[Tuple[int, float]] = deque(maxlen=KEPT)

    def send(self, now: float) -> int:
        """The next beat's number."""
        self.number += 1
        self._sent.append((self.number, now))
        return self.number

    def take(self, number: int, echo: int) -> bool:
        """Whether a beat that was heard is newer than all before; who sends an older one has sent this one since."""
        if number <= self.theirs:
            return False
        self.theirs = number
        while self._sent and self._sent[0][0] <= echo:
            self.proved = self._sent.popleft()[1]
        return True


class Contact:
    """One node's.

    Attributes:
        proved: When it last was in contact with a majority, for certain.
        elsewhere: No other lead was in contact with a majority later than then.
        left: When we last followed another lead, or were one that had a majority.
    """

    def __init__(self) -> None:
        self.proved = self.elsewhere = self.left = NEVER

    def follow(self, proved: float, age: float) -> None:
        """Our lead has answered the beat of that time; ``age``: of its own contact, in seconds."""
        self.proved = max(self.proved, proved - age)

    def lead(self, proved: Iterable[float], count: int, now: float) -> None:
        """We lead.

        Args:
            proved: When each connected node was in contact for certain.
            count: Of all nodes of the run.
            now: The time.
        """
        times = sorted([now, *proved], reverse=True)
        if 2 * len(times) > count > 0:
            self.proved = max(self.proved, times[count // 2])

    def told(self, now: float, age: float) -> None:
        """A node that follows us heard another lead so many seconds ago."""
        self.elsewhere = max(self.elsewhere, now - age)

    def leave(self, heard: float) -> None:
        """We follow, or are, a lead no more that was heard, or had contact, at that time."""
        self.left = max(self.left, heard)
        self.elsewhere = max(self.elsewhere, heard)


def age(now: float, time: float) -> float:
    """Seconds since a time that may never have been."""
    return min(max(0.0, now - time), OLDEST)
