"""Who takes part in an attempt, as run control says: what a supervisor tells its agent, and how the agent obeys.

The supervisor sends it over a socket that the agent has from its birth, again and again. Each message also says how
long the agent may go on without another one, by the boot clock of this host. That is the same lease that the fence
has (supervisor/fence_pipe.py). It matters where supervisor and fence are both stopped: nothing else could end the
node's workers before the others begin without it. So where the lease ends

    at ``term_at``  the agent sends itself SIGTERM: torchrun ends its workers
    at ``kill_at``  SIGKILL: each worker ends with its parent, which ends with the agent

and where the supervisor is gone SIGKILL follows at once.
"""

import json
import os
import select
import signal
import socket
import threading
from typing import Callable, FrozenSet, NamedTuple, Optional

from ..system.clock import boot_clock

HANDLE = "CLUSTERDDP_PARTICIPANTS"  # in the agent's environment: the descriptor of its socket
LONGEST = 65536  # bytes of a message
# Seconds behind the fence, whose SIGTERM comes first; and one that was stopped itself hears meanwhile that all is well.
LATER = 0.75
FOREVER = float("inf")


class Participants(NamedTuple):
    """Who takes part, by node number.

    Attributes:
        epoch: Grows with each change, on all nodes alike.
        nodes: They take part; None: everyone does, for nobody has said anything yet.
        ended: Their agents have ended well: nobody waits for them, and nothing starts again without them.
        term_at: When the agent is to end its workers, unless it has heard more.
        kill_at: When it is to be killed.
    """

    epoch: int = 0
    nodes: Optional[FrozenSet[int]] = None
    ended: FrozenSet[int] = frozenset()
    term_at: float = FOREVER
    kill_at: float = FOREVER

    def excludes(self, node: int) -> bool:
        """Whether a node takes no part: it is lost, or has failed."""
        return self.nodes is not None and node not in self.nodes and node not in self.ended

    def has_ended(self, node: int) -> bool:
        """Whether a node's agent has ended well."""
        return node in self.ended

    def pack(self) -> bytes:
        """As a message."""
        nodes = None if self.nodes is None else sorted(self.nodes)
        times = [None if time == FOREVER else time for time in (self.term_at, self.kill_at)]
        return json.dumps([self.epoch, nodes, sorted(self.ended), *times]).encode("ascii")

    @classmethod
    def of(cls, data: bytes) -> "Participants":
        """From a message's bytes."""
        epoch, nodes, ended, *times = json.loads(data)
        term_at, kill_at = (FOREVER if time is None else float(time) for time in times)
        return cls(epoch, None if nodes is None else frozenset(nodes), frozenset(ended), term_at, kill_at)


EVERYONE = Participants()


class Listener:
    """The agent's end of the socket: called, it gives the newest message.

    Args:
        sock: To the supervisor.
        end: Sends this process a signal.
    """

    def __init__(self, sock: socket.socket, end: Callable[[int], object]) -> None:
        self.sock, self.end = sock, end
        self.newest = EVERYONE
        self.termed = False
        self.thread = threading.Thread(target=self.run, name="clusterddp participants", daemon=True)
        sock.setblocking(False)

    def __call__(self) -> Participants:
        """The newest message."""
        return self.newest

    def begin(self) -> None:
        """Listen from now on."""
        self.read()
        self.thread.start()

    def run(self) -> None:
        """The thread's work, until the supervisor is gone."""
        while True:
            wait = self.due() - boot_clock()
            select.select([self.sock], [], [], None if wait == FOREVER else max(wait, 0.0))
            if not self.read():
                self.end(signal.SIGKILL)
                return
            self.obey()

    def due(self) -> float:
        """When something has to be done without another message."""
        return (self.newest.kill_at if self.termed else self.newest.term_at) + LATER

    def read(self) -> bool:
        """Take the newest message; False when the supervisor is gone."""
        while True:
            try:
                data = self.sock.recv(LONGEST)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            if not data:
                return False
            self.newest = Participants.of(data)

    def obey(self) -> None:
        """End what must not go on."""
        now = boot_clock()
        if now < self.newest.term_at:
            self.termed = False
        elif now >= self.newest.kill_at + LATER:
            self.end(signal.SIGKILL)
        elif now >= self.newest.term_at + LATER and not self.termed:
            self.termed = True
            self.end(signal.SIGTERM)


def of_supervisor() -> Callable[[], Participants]:
    """What the supervisor of this agent says; everyone takes part where there is none."""
    handle = os.environ.get(HANDLE)
    if handle is None:
        return lambda: EVERYONE
    listener = Listener(socket.socket(fileno=int(handle)), lambda number: os.kill(os.getpid(), number))
    listener.begin()
    return listener
