"""Ask the server that a worker's start-up hook has made: HTTP on a Unix socket, answered by a thread of C++.

It answers while the worker holds the interpreter, but it is the user's process: whatever it sends is bounded in time
and bytes. A worker that is stopped, or whose child inherited the listening socket, never answers.
"""

import os
import socket
import stat
import time
from typing import Optional

from ..system.small_files import text_of

MAX_HEAD = 64 * 1024  # bytes of an answer's status line and headers
PIECE = 1 << 16  # bytes that are read at a time
LISTENING = "00010000"  # a socket's flags in /proc/net/unix
RETRY_INTERVAL = 0.02  # seconds until a server with too many callers is called again


class NoAnswerError(Exception):
    """The worker's server gave no usable answer; the message says why."""


class UnknownHandlerError(NoAnswerError):
    """The server does not know the question: this version of torch has no such handler."""


def is_open(pid: int, path: str) -> bool:
    """Whether a worker still has the listening socket of its server at ``path``.

    Where the script has closed it, the first caller makes the server's thread fail, which aborts the worker.
    """
    end = "/" + os.path.basename(path)
    table = (line.split(None, 7) for line in text_of("/proc/%d/net/unix" % pid).splitlines())
    # Its fields: …, flags, type, state, inode, the path as the worker gave it.
    found = {"socket:[%s]" % row[6] for row in table if row[7:] and row[7].endswith(end) and row[3] == LISTENING}
    try:
        return bool(found) and any(
            _target("/proc/%d/fd/%s" % (pid, name)) in found for name in os.listdir("/proc/%d/fd" % pid)
        )
    except OSError:  # gone, or another user's
        return False


def _target(descriptor: str) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:  # closed meanwhile
        return ""


def ask(path: str, handler: str, *, timeout: float, limit: int) -> bytes:
    """Return what a handler of the server at ``path`` answers; raises NoAnswerError, whatever the server does.

    ``timeout`` is in seconds for all of it; ``limit`` is the most bytes that are read, head and body.
    """
    deadline = time.monotonic() + timeout
    try:
        handle = open_socket(path)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                # A socket's address has at most 107 bytes, and a spool's path may be longer.
                _connect(connection, "/proc/self/fd/%d" % handle, deadline)
                connection.settimeout(_left(deadline))
                connection.sendall(
                    b"POST /handler/%s HTTP/1.1\r\nHost: worker\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    % handler.encode()
                )
                return _read_body(connection, deadline, limit)
        finally:
            os.close(handle)
    except socket.timeout as error:
        raise NoAnswerError("it does not answer") from error
    except OSError as error:
        raise NoAnswerError("its server is gone (%s)" % os.strerror(error.errno or 0)) from error


def open_socket(path: str) -> int:
    """A handle on the socket at ``path`` itself, not what a link there, or in place of its folder, leads to."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(os.path.dirname(path), flags | os.O_DIRECTORY)
    try:
        handle = os.open(os.path.basename(path), flags, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISSOCK(os.fstat(handle).st_mode):
        os.close(handle)
        raise NoAnswerError("something else is in place of its server's socket")
    return handle


def _connect(connection: socket.socket, address: str, deadline: float) -> None:
    while True:
        connection.settimeout(_left(deadline))
        try:
            return connection.connect(address)
        except BlockingIOError:  # as many wait for the server as it lets wait
            time.sleep(RETRY_INTERVAL)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise NoAnswerError("it does not answer")
    return left


def _read_body(connection: socket.socket, deadline: float, limit: int) -> bytes:
    """The body, as long as the head says; up to the connection's end if it does not."""
    received = bytearray()
    start = end = None  # of the body
    while end is None or len(received) < end:
        connection.settimeout(_left(deadline))
        piece = connection.recv(min(PIECE, limit - len(received) + 1))
        if not piece:
            break
        searched = max(0, len(received) - 3)
        received += piece
        if start is None:
            found = received.find(b"\r\n\r\n", searched)
            if found >= 0:
                start = found + 4
                end = _body_end(bytes(received[:start]))
        if len(received) > (MAX_HEAD if start is None else limit):
            raise NoAnswerError("its answer is too long")
    if received[:12] == b"HTTP/1.1 404":
        raise UnknownHandlerError("its torch does not answer this question")
    if start is None or received[:12] != b"HTTP/1.1 200":
        raise NoAnswerError("its server answers with an error")
    if end is not None and len(received) < end:
        raise NoAnswerError("its answer is cut")
    with memoryview(received) as view:
        return bytes(view[start:end])


def _body_end(head: bytes) -> Optional[int]:
    """Where the body ends, if the head says so: a child made meanwhile may keep the connection open."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit() and len(value) < 20:
            return len(head) + int(value)
    return None
