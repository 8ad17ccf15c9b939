"""Sessions over a live OpenSSH master connection, by the protocol of its control socket (OpenSSH's PROTOCOL.mux).

Spoken here rather than by a child ``ssh -S``: that costs more CPU than all the rest of a session, waits for ever for a
master that hangs, and logs in by itself where the master refuses a session.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

from clusterddp.hosts.ssh.pipes import EXIT_STATUS_TIMEOUT, LAST_STDERR_TIMEOUT, Tail

if TYPE_CHECKING:
    from pathlib import Path

HELLO_TIMEOUT = 2.0  # seconds for a master, a process of this machine, to say hello
SESSION_TIMEOUT = 5.0  # seconds for a session, which is one round trip to the host
_VERSION = 4
_HELLO, _NEW_SESSION, _STOP_LISTENING = 0x00000001, 0x10000002, 0x10000009
_OK, _PERMISSION_DENIED, _FAILURE, _EXIT, _OPENED = 0x80000001, 0x80000002, 0x80000003, 0x80000004, 0x80000006
_MAX_MESSAGE = 256 * 1024  # bytes, as in OpenSSH
_NO_ESCAPE_CHARACTER = 0xFFFFFFFF
_ID = 1  # of our only request on a control connection


class MuxError(Exception):
    """A master is not there, does not answer, or refuses; the text says which."""


class MuxPipe:
    """A byte pipe over a session of a master connection; see ``BytePipe``."""

    def __init__(self, path: Path, command: str) -> None:
        """Start ``command`` over the master at ``path``; raises MuxError, before anything was sent to the command."""
        self._stdout_ended = False
        self._status: int | None = None
        self._closing = threading.Lock()
        with contextlib.ExitStack() as opened:
            self._control = _Control(path)
            opened.callback(self._control.close)
            self._stdin, self._stdout, self._stderr = (_Stream(opened) for _ in range(3))
            self._open_session(command)
            opened.pop_all()
        self._tail = Tail(self._stderr.ours.recv)

    def _open_session(self, command: str) -> None:
        numbers = struct.pack(">IIIII", 0, 0, 0, 0, _NO_ESCAPE_CHARACTER)  # no terminal, X11, agent, subsystem
        self._control.send(_NEW_SESSION, _string("") + numbers + _string("") + _string(command))
        for stream in (self._stdin, self._stdout, self._stderr):
            self._control.pass_on(stream.theirs)
        self._control.answer(_OPENED, SESSION_TIMEOUT)

    def read(self, size: int) -> bytes:
        """See ``BytePipe``."""
        try:
            data = b"" if self._stdout_ended else self._stdout.ours.recv(size)
        except OSError:  # closed by another thread: the end too
            data = b""
        self._stdout_ended = not data
        return data

    def write(self, data: bytes) -> None:
        """See ``BytePipe``."""
        self._stdin.ours.sendall(data)

    def stderr(self) -> str:
        """See ``BytePipe``."""
        return self._tail.text()

    def exit_status(self) -> int | None:
        """See ``BytePipe``."""
        with self._closing, contextlib.suppress(MuxError):
            if self._status is None:
                session = self._control.answer(_EXIT, EXIT_STATUS_TIMEOUT if self._stdout_ended else 0)
                self._status = int.from_bytes(session[4:8], "big")
                self._tail.join(LAST_STDERR_TIMEOUT)  # a caller that asks for the status also reads stderr
        return self._status

    def close(self) -> None:
        """See ``BytePipe``. The master ends the session as its control connection closes."""
        for stream in (self._stdin, self._stdout, self._stderr):
            stream.shut()  # wakes whoever reads or writes, whatever the master does
        with self._closing:
            self._control.close()
        self._tail.join(2)
        for stream in (self._stdin, self._stdout, self._stderr):
            stream.close()


def is_live(path: Path) -> bool:
    """Whether a master answers at ``path``."""
    try:
        _Control(path).close()
    except MuxError:
        return False
    return True


def stop_listening(path: Path) -> None:
    """Have a master take no more sessions and end with its last one; raises MuxError if it does not confirm that.

    A master that hangs gets to know when it goes on.
    """
    control = _Control(path, wait=False)
    try:
        control.send(_STOP_LISTENING, b"")
        control.hear_hello()
        control.answer(_OK, HELLO_TIMEOUT)
    finally:
        control.close()


class _Stream:
    """One of a session's streams: our end of a socket pair, and the one that the master gets."""

    def __init__(self, opened: contextlib.ExitStack) -> None:
        """Make the pair, which ``opened`` closes if the session is not opened; raises MuxError."""
        try:
            self.ours, self.theirs = socket.socketpair()
        except OSError as error:
            raise MuxError(f"no socket for a session: {error.strerror}") from error
        opened.callback(self.close)

    def shut(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed already
            self.ours.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class _Control:
    """A connection to a master's control socket. What comes over it is a number of bytes and checked fields."""

    def __init__(self, path: Path, *, wait: bool = True) -> None:
        """Connect and say hello; unless ``wait``, without waiting for the master's. Raises MuxError."""
        try:
            self._socket = socket.socket(socket.AF_UNIX)
        except OSError as error:
            raise MuxError(f"no socket for a master: {error.strerror}") from error
        self._socket.settimeout(HELLO_TIMEOUT)
        try:
            self._socket.connect(str(path))
            if hasattr(socket, "SO_PEERCRED"):
                _, uid, _ = struct.unpack("iII", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if uid != os.geteuid():
                    raise MuxError(f"the master is of uid {uid}")
            self._send_packet(struct.pack(">II", _HELLO, _VERSION))
            if wait:
                self.hear_hello()
        except (OSError, MuxError) as error:
            self.close()
            raise error if isinstance(error, MuxError) else MuxError(f"no master: {error}") from error

    def close(self) -> None:
        self._socket.close()

    def hear_hello(self) -> None:
        kind, body = self._receive(time.monotonic() + HELLO_TIMEOUT)
        if kind != _HELLO or body[:4] != struct.pack(">I", _VERSION):
            raise MuxError("the master speaks another protocol")

    def send(self, kind: int, body: bytes) -> None:
        try:
            self._send_packet(struct.pack(">II", kind, _ID) + body)
        except OSError as error:
            raise MuxError(f"the master is gone: {error}") from error

    def pass_on(self, end: socket.socket) -> None:
        """Give the master a socket, and close ours of it."""
        rights = array.array("i", [end.fileno()])
        try:
            self._socket.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            raise MuxError(f"the master is gone: {error}") from error
        end.close()

    def answer(self, wanted: int, timeout: float) -> bytes:
        """Wait for a message of this kind; return what follows its kind. Raises MuxError for a refusal."""
        deadline = time.monotonic() + timeout
        while True:
            kind, body = self._receive(deadline)
            if kind in (_PERMISSION_DENIED, _FAILURE):
                raise MuxError(f"the master refuses: {body[8:200].decode(errors='replace')}")
            if kind == wanted:
                return body

    def _send_packet(self, packet: bytes) -> None:
        self._socket.sendall(struct.pack(">I", len(packet)) + packet)

    def _receive(self, deadline: float) -> tuple[int, bytes]:
        (length,) = struct.unpack(">I", self._read(4, deadline))
        if not 4 <= length <= _MAX_MESSAGE:
            raise MuxError("the master sends nonsense")
        packet = self._read(length, deadline)
        return int.from_bytes(packet[:4], "big"), packet[4:]

    def _read(self, count: int, deadline: float) -> bytes:
        """Read so many bytes; raises MuxError if they have not come by then."""
        data = b""
        while len(data) < count:
            self._socket.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                more = self._socket.recv(count - len(data))
            except (TimeoutError, BlockingIOError) as error:
                raise MuxError("the master does not answer") from error
            except OSError as error:
                raise MuxError(f"the master is gone: {error}") from error
            if not more:
                raise MuxError("the master is gone")
            data += more
        return data


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack(">I", len(data)) + data
