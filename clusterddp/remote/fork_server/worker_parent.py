"""The parent of one forked worker, at its shim's orders; it ends the worker when the shim is gone."""

import array
import json
import os
import select
import signal
import socket
import struct
from typing import Any, Dict, List, Tuple

from ..shared.run.fork_requests import WorkerRequest
from .forked_worker import WorkerInputs, become

LONGEST = 4 << 20  # bytes of a request
DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class WorkerParent:
    """The parent of one forked worker; ``connection`` is the one to the worker's shim."""

    def __init__(self, given: WorkerInputs, connection: socket.socket) -> None:
        self.given, self.connection = given, connection

    def run(self) -> Tuple[str, str]:
        """Fork the worker and keep it to its end; returns in it alone, with its spool and ``<start>.<local_rank>``."""
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            request, handles = receive(self.connection, 3)
            status_reader, tell = os.pipe()
            held, release = os.pipe()
            parent = os.getpid()
            pid = os.fork()
        except BaseException:  # noqa: BLE001 - the shim hears that we are gone
            os._exit(1)
        if not pid:
            for handle in (status_reader, release):
                os.close(handle)
            self.connection.close()
            return become(self.given, WorkerRequest(**request), handles, parent, (tell, held))
        try:
            for handle in (tell, held, *handles):
                os.close(handle)
            self.keep(pid, status_reader, release)
        finally:
            os._exit(0)

    def keep(self, pid: int, status_reader: int, release: int) -> None:
        """Say how the worker starts, wait for its end or the shim's, say how it ended."""
        with os.fdopen(status_reader, "rb") as stream:
            refused = stream.read().decode("utf-8", "replace")
        if refused:
            self.say({"refused": refused.strip()})
            return
        wake, woken = os.pipe()
        for handle in (wake, woken):
            os.set_blocking(handle, False)
        signal.set_wakeup_fd(woken)
        for number in DEAF_TO:  # it ends with the worker
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self.say({"pid": pid})
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            sources: List[Any] = [self.connection, wake]
            ready = select.select(sources, [], [])[0]
            for handle in ready:
                if handle is wake:
                    os.read(wake, 512)
                elif self.connection.recv(1) == b"g":
                    os.write(release, b"g")
                else:  # the shim is gone: nobody wants this worker
                    _kill_group(pid)
                    # Not reaped here: the supervisor adopts it with its status, and records whose worker it was.
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                    return
        self.connection.sendall(b"ended\n")
        self.connection.recv(1)  # from now on the shim sends no signal to that pid
        _, status, usage = os.wait4(pid, 0)
        self.say({"status": status, "maxrss": usage.ru_maxrss})

    def say(self, answer: Dict[str, object]) -> None:
        """A line of JSON to the shim."""
        self.connection.sendall(json.dumps(answer).encode() + b"\n")


def receive(connection: socket.socket, most: int) -> Tuple[Dict[str, Any], List[int]]:
    """A request of this user's (fork_client.send) and the descriptors that came with it, ``most`` of them."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise PermissionError(user)
    handles = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(most * handles.itemsize))
    for _, _, rights in ancillary:
        handles.frombytes(rights)
    if len(data) < 4:
        raise ValueError("no request")
    (size,) = struct.unpack("<I", data)
    body = b""
    while len(body) < size <= LONGEST:
        more = connection.recv(size - len(body))
        if not more:
            break
        body += more
    request: Dict[str, Any] = json.loads(body)
    return request, list(handles)


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:  # no such group, or it has ended
            continue
