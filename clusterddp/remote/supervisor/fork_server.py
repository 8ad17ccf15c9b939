"""The run's fork server as its supervisor sees it: its start, the agent that it forks, its end.

It is a child like the agent and the store, of the first attempt alone: a later one starts all plainly. Nothing waits
for it longer than ``PATIENCE``: whatever it cannot do is done plainly.

Not here: what it does (worker/fork_server.py), how a shim asks it for a worker (worker/fork_client.py).
"""

import json
import os
import selectors
import signal
import socket
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from ..shared.plan import NodePlan
from ..spool.layout import Spool
from ..system.bootstrap import read_json
from ..system.clock import boot_clock

LOG = "fork-server.log"
PATIENCE = 60.0  # seconds for importing; on a cold network file system it takes tens of them
ORDER_LIMIT = 1.0  # seconds for the agent to take its order
LONGEST = 4096  # bytes of what it says


class ForkServer:
    """A fork server that is importing, or ready.

    Args:
        pid: Its process; 0 once that has ended.
        sock: Where it says how far it is.
        event: Appends an event.
    """

    def __init__(self, pid: int, sock: socket.socket, event: Callable[..., None]) -> None:
        self.pid, self.sock, self.event = pid, sock, event
        self.agent: Optional[int] = None  # forked, and waiting for its order
        self.settled = False  # whether it is known that there is an agent, or that there will be none
        self.until = boot_clock() + PATIENCE
        self._said = b""
        self._selector: Optional[selectors.BaseSelector] = None
        sock.setblocking(False)

    @property
    def pending(self) -> bool:
        """Whether the agent may still come."""
        self._listen()
        if not self.settled and boot_clock() > self.until:
            self._give_up("it did not import torch within %d s" % PATIENCE)
        return not self.settled

    def wake(self, selector: selectors.BaseSelector) -> None:
        """Have the loop wake when it says something."""
        self._selector = selector
        selector.register(self.sock, selectors.EVENT_READ, self._listen)

    def order(self, argv: Sequence[str], env: Mapping[str, str], log: str, until: float) -> Optional[int]:
        """Let the waiting agent run; its pid, or None where it has to be started plainly.

        Args:
            argv: Its command line, from the interpreter on.
            env: Its environment.
            log: Takes both its streams.
            until: When, by the boot clock, it is too late to begin.
        """
        agent, self.agent = self.agent, None
        if agent is None:
            return None
        order = {"argv": list(argv), "env": dict(env), "log": log, "until": until if until < float("inf") else None}
        self.sock.settimeout(ORDER_LIMIT)
        try:
            self.sock.sendall(json.dumps(order).encode("ascii") + b"\n")
        except OSError:  # it has ended, perhaps by the kernel's choice, or does not listen
            _kill(agent)
            return None
        finally:
            self.sock.setblocking(False)
        return agent

    def ended(self, pid: int) -> None:
        """A child has ended; was it the server, or the agent that waits?"""
        if pid == self.pid:
            self._listen()
            self.pid, self.settled = 0, True
        if pid == self.agent:
            self.agent = None

    def end(self) -> None:
        """End it, and an agent that has no order. Its workers have parents of their own."""
        self.settled = True
        for pid in filter(None, (self.pid, self.agent)):
            _kill(pid)
        self.agent = None

    def _listen(self) -> None:
        try:
            data = self.sock.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.settled = True
            if self._selector:
                self._selector.unregister(self.sock)
            self._selector = None
        self._said = (self._said + data)[-LONGEST:]
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            self._hear(line.decode("utf-8", "replace"))

    def _hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "agent" and rest.isdigit() and not self.settled:
            self.agent, self.settled = int(rest), True
        elif word == "ready":
            self.event("fork_server_ready")
        elif not self.settled or word == "refused":
            self.settled = True
            self.event("not_forked", reason=rest if word == "refused" else line)

    def _give_up(self, reason: str) -> None:
        self.event("not_forked", reason=reason)
        self.end()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has just ended
        pass


def server_argv(plan: NodePlan) -> List[str]:
    """The fork server's command line: that of a worker, which its start-up hook executes; without the hook it ends."""
    return [plan.python, "-c", "", *plan.worker_argv]


def secrets_of(spool: Spool) -> Dict[str, str]:
    """The secrets of a run's workers: their fork server has them as they have."""
    found: Dict[str, str] = read_json(spool.path("secrets.json")) or {}
    return found
