"""The messages by which a supervisor tells its agent which nodes take part in an attempt, and how the agent obeys.

The supervisor sends the message repeatedly over a socket that the agent has inherited. Each message also holds the
times until which the agent may run without another one, by the boot clock of this host. They are the same lease that
the fence has (supervisor/fence_pipe.py). It matters where supervisor and fence are both stopped: nothing else could end
the node's workers before the other nodes start again without it. So where the lease ends

    at ``term_at``  the agent sends itself SIGTERM: torchrun ends its workers
    at ``kill_at``  the agent sends itself SIGKILL: each worker ends with its parent, which ends with the agent

and where the supervisor has ended, SIGKILL follows at once.
"""

import json
import os
import select
import signal
import socket
import threading
from typing import Callable, FrozenSet, NamedTuple, Optional

from ..shared.run.plan import PARTICIPANTS
from ..system.clock import boot_clock

MAX_MESSAGE = 65536  # bytes of a message
# Seconds that the agent waits beyond the lease, so that the fence's SIGTERM comes first, and so that an agent that was
# itself stopped for a while can read a newer lease before it acts on the old one.
AGENT_DELAY = 0.5
FOREVER = float("inf")


class Participants(NamedTuple):
    """The nodes that take part in an attempt, by node number, and the lease of this node's agent."""

    epoch: int = 0  # number that grows with each change, the same on all nodes
    nodes: Optional[FrozenSet[int]] = None  # the participants; None: all nodes, because nothing has been decided yet
    # nodes whose agents have ended successfully: no round waits for them or starts again because of them
    ended: FrozenSet[int] = frozenset()
    # unreachable nodes whose own fence has told them to end: their round is over, but they stay among ``nodes`` until
    # they have certainly ended
    fenced: FrozenSet[int] = frozenset()
    term_at: float = FOREVER  # when the agent is to end its workers, unless a newer message comes (boot clock)
    kill_at: float = FOREVER  # when the agent is to kill itself, unless a newer message comes (boot clock)

    def excludes(self, node: int) -> bool:
        """Whether a node takes no part because it is lost or has failed."""
        return self.nodes is not None and node not in self.nodes and node not in self.ended

    def has_ended(self, node: int) -> bool:
        """Whether a node's agent has ended successfully."""
        return node in self.ended

    def over_without(self, node: int) -> bool:
        """Whether all other nodes have ended or are lost, and at least one has ended successfully."""
        return bool(self.ended) and self.nodes is not None and self.nodes <= {node}

    def pack(self) -> bytes:
        """Encode as a message."""
        nodes = None if self.nodes is None else sorted(self.nodes)
        times = [None if time == FOREVER else time for time in (self.term_at, self.kill_at)]
        return json.dumps([self.epoch, nodes, sorted(self.ended), sorted(self.fenced), *times]).encode("ascii")

    @classmethod
    def unpack(cls, data: bytes) -> "Participants":
        """Decode a message."""
        epoch, nodes, ended, fenced, *times = json.loads(data)
        term_at, kill_at = (FOREVER if time is None else float(time) for time in times)
        taking_part = None if nodes is None else frozenset(nodes)
        return cls(epoch, taking_part, frozenset(ended), frozenset(fenced), term_at, kill_at)


EVERYONE = Participants()


class LeaseListener:
    """The agent's end of the socket to the supervisor; calling it returns the newest message.

    ``end`` sends this process a signal.
    """

    def __init__(self, sock: socket.socket, end: Callable[[int], object]) -> None:
        self.sock, self.end = sock, end
        self.newest = EVERYONE
        self.is_terminating = False
        self.thread = threading.Thread(target=self.run, name="clusterddp participants", daemon=True)
        sock.setblocking(False)

    def __call__(self) -> Participants:
        """Return the newest message."""
        return self.newest

    def begin(self) -> None:
        """Read what has come and start the thread that reads further messages."""
        self.read()
        self.thread.start()

    def run(self) -> None:
        """Read messages and obey them until the supervisor has ended. Runs in the thread."""
        while True:
            wait = self.due() - boot_clock()
            select.select([self.sock], [], [], None if wait == FOREVER else max(wait, 0.0))
            if not self.read():
                self.end(signal.SIGKILL)
                return
            self.obey()

    def due(self) -> float:
        """Return when the next signal is due unless another message comes (boot clock)."""
        return (self.newest.kill_at if self.is_terminating else self.newest.term_at) + AGENT_DELAY

    def read(self) -> bool:
        """Read the newest message; return False when the supervisor has ended."""
        while True:
            try:
                data = self.sock.recv(MAX_MESSAGE)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            if not data:
                return False
            self.newest = Participants.unpack(data)

    def obey(self) -> None:
        """Send this process the signal that is due, if any."""
        now = boot_clock()
        if now < self.newest.term_at:
            self.is_terminating = False
        elif now >= self.newest.kill_at + AGENT_DELAY:
            self.end(signal.SIGKILL)
        elif now >= self.newest.term_at + AGENT_DELAY and not self.is_terminating:
            self.is_terminating = True
            self.end(signal.SIGTERM)


def supervisor_participants() -> Callable[[], Participants]:
    """Return a function that gives the supervisor's newest message; without a supervisor, all nodes take part."""
    handle = os.environ.get(PARTICIPANTS)
    if handle is None:
        return lambda: EVERYONE
    listener = LeaseListener(socket.socket(fileno=int(handle)), lambda number: os.kill(os.getpid(), number))
    listener.begin()
    return listener
