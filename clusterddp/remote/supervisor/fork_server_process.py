"""The run's fork server as its supervisor sees it: its start, what it forks for the supervisor, its end.

It is a child like the agent and the store, and outlives attempts: one import of torch serves all of them. What it forks
for the supervisor, which adopts it, is the agent of each attempt and the store. Nothing waits for it longer than a
limit: whatever it cannot do is done plainly.
"""

import array
import json
import os
import selectors
import signal
import socket
from typing import Callable, List, Mapping, Optional, Sequence

from ..shared.run.plan import NodePlan
from ..spool.quoted import SERVER_LOG
from ..system.clock import boot_clock

LOG = SERVER_LOG
PATIENCE = 60.0  # seconds for importing; on a cold network file system it takes tens of them
LATER_PATIENCE = 5.0  # seconds for a fork in a later attempt: the other hosts wait, and torch is there
ORDER_LIMIT = 1.0  # seconds for a fork to take its order
LONGEST = 4096  # bytes of what it says
_TOLD = {  # its words, each with an event and the field that has what follows
    "refused": ("not_forked", "reason"),
    "preloaded": ("preloaded", "packages"),
    "left": ("not_preloaded", "reason"),
}


class Fork:
    """A process that the server was asked for; it says that it is there and waits for its order.

    Args:
        sock: To it.
        until: When, by the boot clock, nobody waits for it any more.
        event: Appends an event.
        selector: Of the loop that is to wake when it says something.
    """

    def __init__(
        self, sock: socket.socket, until: float, event: Callable[..., None], selector: Optional[selectors.BaseSelector]
    ) -> None:
        self.sock, self.until, self.event = sock, until, event
        self.pid: Optional[int] = None
        self.settled = False  # whether it is known that there is one, or that there will be none
        self._said = b""
        self._selector = selector
        sock.setblocking(False)
        if selector:
            selector.register(sock, selectors.EVENT_READ, self._listen)

    @property
    def pending(self) -> bool:
        """Whether it may still come."""
        self._listen()
        if not self.settled and boot_clock() > self.until:
            self._settle("the fork server did not import torch in time")
        return not self.settled

    def order(self, argv: Sequence[str], env: Mapping[str, str], log: str, until: float) -> Optional[int]:
        """Let it run; its pid, or None where it has to be started plainly.

        Args:
            argv: Its command line, from the interpreter on.
            env: Its environment.
            log: Takes both its streams.
            until: When, by the boot clock, it is too late to begin.
        """
        self._settle()
        pid, self.pid = self.pid, None
        if pid is None:
            return None
        order = {"argv": list(argv), "env": dict(env), "log": log, "until": until if until < float("inf") else None}
        self.sock.settimeout(ORDER_LIMIT)
        try:
            self.sock.sendall(json.dumps(order).encode("ascii") + b"\n")
        except OSError:  # it has ended, perhaps by the kernel's choice, or does not listen
            _signal(pid, signal.SIGKILL)
            return None
        finally:
            self.sock.close()
        return pid

    def ended(self, pid: int) -> None:
        """A child has ended; was it this one?"""
        if pid == self.pid:
            self.pid = None

    def end(self) -> None:
        """It is not wanted: without an order it ends by itself, and at once where it is known."""
        self._settle()
        self.sock.close()
        if self.pid:
            _signal(self.pid, signal.SIGKILL)
            self.pid = None

    def _listen(self) -> None:
        if self.settled:
            return
        try:
            data = self.sock.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._said = (self._said + data)[-LONGEST:]
        if not data:
            self._settle()
        elif b"\n" in self._said:
            said = self._said.decode("utf-8", "replace").strip()
            self.pid = int(said) if said.isdigit() else None
            self._settle("" if self.pid else said)

    def _settle(self, reason: str = "") -> None:
        if reason:
            self.event("not_forked", reason=reason)
        if self._selector and not self.settled:
            self._selector.unregister(self.sock)
        self.settled = True
        if self.pid is None:
            self.sock.close()


class ForkServer:
    """A fork server that is importing, or ready.

    Args:
        pid: Its process; 0 once that has ended.
        sock: Where it is asked, and says how far it is.
        event: Appends an event.
    """

    def __init__(self, pid: int, sock: socket.socket, event: Callable[..., None]) -> None:
        self.pid, self.sock, self.event = pid, sock, event
        self.born = boot_clock()
        self._said = b""
        self._selector: Optional[selectors.BaseSelector] = None
        sock.setblocking(False)

    def wake(self, selector: selectors.BaseSelector) -> None:
        """Have the loop wake when it says something."""
        self._selector = selector
        selector.register(self.sock, selectors.EVENT_READ, self._listen)

    def ask(self, role: str, spool: str, handles: Sequence[int] = (), patience: float = PATIENCE) -> Optional[Fork]:
        """A process of that role for an attempt; None where the server is gone.

        Args:
            role: ``agent`` or ``store``.
            spool: The attempt's.
            handles: Descriptors that it gets.
            patience: Seconds from the server's start on that it may take.
        """
        if not self.pid:
            return None
        ours, its = socket.socketpair()
        request = json.dumps({"role": role, "spool": spool}).encode("ascii")
        rights = array.array("i", [its.fileno(), *handles]).tobytes()
        try:
            self.sock.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:  # it has just ended
            ours.close()
            return None
        finally:
            its.close()
        return Fork(ours, max(self.born + patience, boot_clock() + LATER_PATIENCE), self.event, self._selector)

    def ended(self, pid: int) -> None:
        """A child has ended; was it the server?"""
        if pid == self.pid:
            for _ in range(2):
                self._listen()
            self.pid = 0

    def end(self) -> None:
        """Ask it to end by SIGTERM; from now on it is a process as any other. Its workers have parents of their own."""
        if self.pid:
            _signal(self.pid, signal.SIGTERM)
            self.pid = 0

    def _listen(self) -> None:
        try:
            data = self.sock.recv(LONGEST)
        except BlockingIOError:
            return
        except ConnectionResetError:  # it ended with requests unread, and what it said stands behind this
            return
        except OSError:
            data = b""
        if not data and self._selector:
            self._selector.unregister(self.sock)
            self._selector = None
        self._said = (self._said + data)[-LONGEST:]
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "ready":
                self.event("fork_server_ready")
            elif word in _TOLD:
                name, field = _TOLD[word]
                self.event(name, **{field: rest})


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has just ended
        pass


def server_argv(plan: NodePlan) -> List[str]:
    """The fork server's command line: that of a worker, which its start-up hook executes; without the hook it ends."""
    return [plan.python, "-c", "", *plan.worker_argv]
