"""Ask a run's fork server for a worker, and control that worker through its worker parent; the shim does so.

A worker is forked only if the server's own settings equal this process's (``differences``): limits, cgroup, affinity
and all else that a child inherits are then the same as after a plain start. Whatever fails before the worker's pid is
known means a plain start; no code of the worker has run by then.
"""

import array
import json
import os
import socket
import struct
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ..shared.run.fork_requests import WorkerRequest
from ..shared.run.plan import FORK_SOCKET
from ..system import procfs

FORK_TIMEOUT = 60.0  # seconds for the server to import the rest, and to fork
_STATUS = {  # fields of /proc/PID/status, by what they describe
    "user": ("Uid", "Gid"),
    "list of groups": ("Groups",),
    "umask": ("Umask",),
    "set of capabilities": ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"),
    "affinity": ("Cpus_allowed_list", "Mems_allowed_list"),
}
_FILES = {
    "set of limits": "limits",
    "cgroup": "cgroup",
    "cpuset": "cpuset",
    "oom_score_adj": "oom_score_adj",
    "coredump_filter": "coredump_filter",
    "loginuid": "loginuid",
    "sessionid": "sessionid",
    "security label": "attr/current",
}
_LINKS = {
    "working folder": "cwd",
    "root folder": "root",
    "mount namespace": "ns/mnt",
    "network namespace": "ns/net",
    "pid namespace": "ns/pid",
    "user namespace": "ns/user",
    "IPC namespace": "ns/ipc",
    "UTS namespace": "ns/uts",
    "cgroup namespace": "ns/cgroup",
    "time namespace": "ns/time",
}


class NotForkedError(Exception):
    """The worker cannot be forked and has to be started plainly; the message says why."""


class Forked:
    """A forked worker. Its worker parent reaps it only when ordered to, so that nobody reuses its pid before."""

    forked = True

    def __init__(self, pid: int, connection: "ForkServerConnection") -> None:
        self.pid, self.connection = pid, connection
        self.is_parent_alive = True  # whether the worker parent lives, as far as known

    def release(self) -> None:
        """Let the worker begin."""
        self.connection.send_byte(b"g")

    def lives(self) -> bool:
        """Whether the worker has not ended yet."""
        return procfs.read_process(self.pid) is not None

    def wait(self) -> None:
        """Return when the worker has ended."""
        self.is_parent_alive = self.connection.line() == b"ended"

    def reap(self) -> Optional[Tuple[int, int]]:
        """Wait status and maxrss (KiB).

        None where the worker parent was killed: then the supervisor notices the end.
        """
        if not self.is_parent_alive:
            return None
        self.connection.send_byte(b"r")
        answer = decoded(self.connection.line())
        self.connection.line()  # until the worker parent has ended too
        status, maxrss = answer.get("status"), answer.get("maxrss")
        return (status, maxrss) if isinstance(status, int) and isinstance(maxrss, int) else None


class ForkServerConnection:
    """A connection to a worker parent: reads lines, sends single bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = b""

    def line(self) -> bytes:
        """The next line without its end; at the end of the stream whatever is left."""
        while b"\n" not in self.data:
            try:
                more = self.sock.recv(4096)
            except ConnectionError:
                more = b""
            if not more:
                break
            self.data += more
        line, _, self.data = self.data.partition(b"\n")
        return line

    def send_byte(self, byte: bytes) -> None:
        """Send a byte to the worker parent."""
        try:
            self.sock.sendall(byte)
        except OSError:  # it is dead: the next read shows that
            pass


def fork_worker(spool: str, key: str, argv: Sequence[str], env: Dict[str, str], handles: Sequence[int]) -> Forked:
    """Have the spool's fork server fork a worker, which waits for ``release``.

    ``key`` is ``<start>.<local_rank>``; ``argv`` is the command line of a plain start; ``env`` is the environment that
    the script is to see; ``handles`` are its stdin, stdout and stderr. Raises NotForkedError if it has to be started
    plainly.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(FORK_TIMEOUT)
    try:
        server = connect(sock, spool)
        for difference in differences(server):
            raise NotForkedError("the fork server's %s is another" % difference)
        send(sock, WorkerRequest(spool, key, [*argv], [*env.items()])._asdict(), handles)
        connection = ForkServerConnection(sock)
        answer = decoded(connection.line())
        pid = answer.get("pid")
        if not isinstance(pid, int):
            raise NotForkedError(str(answer.get("refused") or "the fork server did not answer"))
    except OSError as error:
        sock.close()
        raise NotForkedError("no fork server: %s" % (error.strerror or error)) from None
    except NotForkedError:
        sock.close()
        raise
    sock.settimeout(None)
    return Forked(pid, connection)


def connect(sock: socket.socket, folder: str) -> int:
    """Connect to the fork server of a folder; returns its pid. Raises OSError or NotForkedError."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sock.connect("/proc/self/fd/%d/%s" % (handle, FORK_SOCKET))  # a folder's path may be too long for an address
    finally:
        os.close(handle)
    server, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise NotForkedError("the socket is another user's")
    return int(server)


def send(sock: socket.socket, request: Dict[str, Any], handles: Sequence[int]) -> None:
    """Send a request and descriptors, as ``receive`` of fork_server/worker_parent.py reads them."""
    body = json.dumps(request).encode("ascii")
    rights = array.array("i", handles).tobytes()
    sock.sendmsg([struct.pack("<I", len(body))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    sock.sendall(body)


def decoded(line: bytes) -> Dict[str, object]:
    """The JSON object in a line; empty where it is not one."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def differences(server: int) -> Iterator[str]:
    """The names of the inherited settings that differ between this process and process ``server``."""
    mine, its = ("/proc/%s/" % pid for pid in (os.getpid(), server))
    for name, file in _FILES.items():
        if _bytes_of(mine + file) != _bytes_of(its + file):
            yield name
    here, there = _status(mine), _status(its)
    for name, fields in _STATUS.items():
        if any(here.get(field) != there.get(field) for field in fields):
            yield name
    for name, file in _LINKS.items():
        if _identity(mine + file) != _identity(its + file):
            yield name
    if _scheduling(os.getpid()) != _scheduling(server):
        yield "scheduling"


def _bytes_of(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:  # not in this kernel, or not readable: the same for both processes
        return None


def _status(folder: str) -> Dict[str, List[str]]:
    text = (_bytes_of(folder + "status") or b"").decode("ascii", "replace")
    return {name: value.split() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _identity(path: str) -> Optional[Tuple[int, int]]:
    """Device and inode of the file at a path; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:  # nothing to compare with
        return None
    return found.st_dev, found.st_ino


def _scheduling(pid: int) -> Tuple[int, int, int]:
    try:
        priority = os.sched_getparam(pid).sched_priority
        return os.sched_getscheduler(pid), priority, os.getpriority(os.PRIO_PROCESS, pid)
    except OSError:
        return -1, -1, -1
