"""The run's fork server as its supervisor sees it: its start, the processes it forks for the supervisor, its end.

It outlives attempts: torch is imported once for all of them. Every wait for it has a limit; a process that it does not
fork in time is started without it.
"""

import array
import json
import os
import selectors
import signal
import socket
from typing import Callable, List, Mapping, Optional, Sequence

from ..shared.run.fork_requests import AgentRequest, BeginOrder
from ..shared.run.plan import NodePlan
from ..spool.quoted import SERVER_LOG
from ..system.clock import boot_clock

LOG = SERVER_LOG  # its output, in the spool
IMPORT_TIMEOUT = 60.0  # seconds for it to import torch; on a cold network file system it takes tens of them
LATER_FORK_TIMEOUT = 5.0  # seconds for a fork in a later attempt: the other hosts wait, and torch is imported already
ORDER_TIMEOUT = 1.0  # seconds for a forked process to accept its order
MAX_MESSAGE = 4096  # bytes of a message from the fork server or a forked process
_MESSAGE_EVENTS = {  # first word of a message → the event to record, and its field that takes the rest of the message
    "refused": ("not_forked", "reason"),
    "preloaded": ("preloaded", "packages"),
    "left": ("not_preloaded", "reason"),
}


class Fork:
    """A process requested from the fork server; it reports that it was forked, and waits for its order.

    ``until`` is the boot clock time after which nobody waits for it. ``event`` appends an event. In ``selector``, the
    loop's, the socket is registered until the reply has come.
    """

    def __init__(
        self, sock: socket.socket, until: float, event: Callable[..., None], selector: Optional[selectors.BaseSelector]
    ) -> None:
        self.sock, self.until, self.event = sock, until, event
        self.pid: Optional[int] = None
        self.is_decided = False  # whether the reply has come, or is awaited no longer
        self._reply = b""
        self._selector = selector
        sock.setblocking(False)
        if selector:
            selector.register(sock, selectors.EVENT_READ, self._listen)

    @property
    def pending(self) -> bool:
        """Whether it may still be forked."""
        self._listen()
        if not self.is_decided and boot_clock() > self.until:
            self._decide("the fork server did not import torch in time")
        return not self.is_decided

    def order(self, argv: Sequence[str], env: Mapping[str, str], log: str, until: float) -> Optional[int]:
        """Send the process its command line; return its pid, or None if it must be started without a fork.

        ``argv`` is its command line, from the interpreter on; ``log`` takes both its output streams; ``until`` is the
        boot clock time from which it is too late to begin.
        """
        self._decide()
        pid, self.pid = self.pid, None
        if pid is None:
            return None
        order = BeginOrder([*argv], dict(env), log, until if until < float("inf") else None)
        self.sock.settimeout(ORDER_TIMEOUT)
        try:
            self.sock.sendall(json.dumps(order._asdict()).encode("ascii") + b"\n")
        except OSError:  # it has ended, perhaps killed by the kernel, or does not read
            _send_signal(pid, signal.SIGKILL)
            return None
        finally:
            self.sock.close()
        return pid

    def note_exit(self, pid: int) -> None:
        """Note that the child ``pid`` has ended, if it is this one."""
        if pid == self.pid:
            self.pid = None

    def end(self) -> None:
        """Drop the process: without an order it ends by itself, and if its pid is known it is killed."""
        self._decide()
        self.sock.close()
        if self.pid:
            _send_signal(self.pid, signal.SIGKILL)
            self.pid = None

    def _listen(self) -> None:
        """Read the reply: the pid of the process, or why there is none."""
        if self.is_decided:
            return
        try:
            data = self.sock.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._reply = (self._reply + data)[-MAX_MESSAGE:]
        if not data:
            self._decide()
        elif b"\n" in self._reply:
            reply = self._reply.decode("utf-8", "replace").strip()
            self.pid = int(reply) if reply.isdigit() else None
            self._decide("" if self.pid else reply)

    def _decide(self, reason: str = "") -> None:
        """Wait no longer for the reply; record the ``reason``, if any, why the process was not forked."""
        if reason:
            self.event("not_forked", reason=reason)
        if self._selector and not self.is_decided:
            self._selector.unregister(self.sock)
        self.is_decided = True
        if self.pid is None:
            self.sock.close()


class ForkServer:
    """A fork server that is importing, or ready.

    ``pid`` becomes 0 once the process has ended. ``sock`` takes requests, and brings its messages. ``event`` appends an
    event.
    """

    def __init__(self, pid: int, sock: socket.socket, event: Callable[..., None]) -> None:
        self.pid, self.sock, self.event = pid, sock, event
        self.started_at = boot_clock()
        self._reply = b""
        self._selector: Optional[selectors.BaseSelector] = None
        sock.setblocking(False)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Have the loop read its messages as they come."""
        self._selector = selector
        selector.register(self.sock, selectors.EVENT_READ, self._listen)

    def ask(
        self, role: str, spool: str, handles: Sequence[int] = (), patience: float = IMPORT_TIMEOUT
    ) -> Optional[Fork]:
        """Request a process for an attempt, as ``role`` ``agent`` or ``store``; None where the server has ended.

        ``spool`` is the attempt's; ``handles`` are descriptors that it gets; ``patience`` is how many seconds after the
        server's start it may take, but at least ``LATER_FORK_TIMEOUT`` from now.
        """
        if not self.pid:
            return None
        ours, its = socket.socketpair()
        request = json.dumps(AgentRequest(role, spool)._asdict()).encode("ascii")
        rights = array.array("i", [its.fileno(), *handles]).tobytes()
        try:
            self.sock.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:  # it has just ended
            ours.close()
            return None
        finally:
            its.close()
        return Fork(
            ours, max(self.started_at + patience, boot_clock() + LATER_FORK_TIMEOUT), self.event, self._selector
        )

    def note_exit(self, pid: int) -> None:
        """Note that the child ``pid`` has ended, if it is the server."""
        if pid == self.pid:
            for _ in range(2):  # its last messages may come after an error
                self._listen()
            self.pid = 0

    def end(self) -> None:
        """End the server by SIGTERM, and treat it as any other process from now on."""
        if self.pid:
            _send_signal(self.pid, signal.SIGTERM)
            self.pid = 0

    def _listen(self) -> None:
        try:
            data = self.sock.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except ConnectionResetError:  # it ended with unread requests; its last messages come after this error
            return
        except OSError:
            data = b""
        if not data and self._selector:
            self._selector.unregister(self.sock)
            self._selector = None
        self._reply = (self._reply + data)[-MAX_MESSAGE:]
        *lines, self._reply = self._reply.split(b"\n")
        for line in lines:
            kind, _, rest = line.decode("utf-8", "replace").partition(" ")
            if kind == "ready":
                self.event("fork_server_ready")
            elif kind in _MESSAGE_EVENTS:
                name, field = _MESSAGE_EVENTS[kind]
                self.event(name, **{field: rest})


def _send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has just ended
        pass


def server_argv(plan: NodePlan) -> List[str]:
    """The fork server's command line: that of a worker, which its start-up hook executes; without the hook it ends."""
    return [plan.python, "-c", "", *plan.worker_argv]
