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
from .forked_worker import WorkerInputs, become_worker

MAX_REQUEST = 4 << 20  # bytes of a request
IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class WorkerParent:
    """The parent of one forked worker; ``connection`` is the one to the worker's shim."""

    def __init__(self, given: WorkerInputs, connection: socket.socket) -> None:
        self.given, self.connection = given, connection

    def run(self) -> Tuple[str, str]:
        """Fork the worker and watch it to its end; returns in it alone, with its spool and ``<start>.<local_rank>``."""
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            request, handles = receive(self.connection, 3)
            status_reader, status_writer = os.pipe()
            start_reader, release = os.pipe()
            parent = os.getpid()
            pid = os.fork()
        except BaseException:  # noqa: BLE001 - the shim hears that we are gone
            os._exit(1)
        if not pid:
            for handle in (status_reader, release):
                os.close(handle)
            self.connection.close()
            return become_worker(self.given, WorkerRequest(**request), handles, parent, (status_writer, start_reader))
        try:
            for handle in (status_writer, start_reader, *handles):
                os.close(handle)
            self.watch(pid, status_reader, release)
        finally:
            os._exit(0)

    def watch(self, pid: int, status_reader: int, release: int) -> None:
        """Report to the shim how the worker starts, wait until it or the shim has ended, report how it ended."""
        with os.fdopen(status_reader, "rb") as stream:
            refused = stream.read().decode("utf-8", "replace")
        if refused:
            self.send({"refused": refused.strip()})
            return
        wake, woken = os.pipe()
        for handle in (wake, woken):
            os.set_blocking(handle, False)
        signal.set_wakeup_fd(woken)
        for number in IGNORED_SIGNALS:  # it ends with the worker
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self.send({"pid": pid})
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
        self.send({"status": status, "maxrss": usage.ru_maxrss})

    def send(self, answer: Dict[str, object]) -> None:
        """Send a line of JSON to the shim."""
        self.connection.sendall(json.dumps(answer).encode() + b"\n")


def receive(connection: socket.socket, max_handles: int) -> Tuple[Dict[str, Any], List[int]]:
    """A request of this user's (fork_client.send) and the descriptors that came with it, ``max_handles`` of them."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise PermissionError(user)
    handles = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(max_handles * handles.itemsize))
    for _, _, rights in ancillary:
        handles.frombytes(rights)
    if len(data) < 4:
        raise ValueError("no request")
    (size,) = struct.unpack("<I", data)
    body = b""
    while len(body) < size <= MAX_REQUEST:
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
