"""Byte pipes: the protocol that every way to a host provides, and the pipe over a child process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Protocol

from clusterddp.errors import UnreachableError
from clusterddp.remote.shared.processes.exit_codes import shell_code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LAST_STDERR_TIMEOUT = 0.5  # seconds for the last stderr, if a child of the child holds it open
MAX_STDERR = 64 * 1024  # the newest bytes of a host's stderr are kept
EXIT_STATUS_TIMEOUT = 1.0  # seconds; the status arrives just after the end of the stream
EOF_TIMEOUT = 0.2  # seconds a child gets to exit by itself once its stdin is closed
TERM_TIMEOUT = 2.0  # seconds between SIGTERM and SIGKILL
KILL_TIMEOUT = 30.0  # seconds for a killed child to end; one that hangs in the kernel is given up then


class DroppedError(UnreachableError):
    """The server hung up before its banner, as sshd does when too many clients log in at once (MaxStartups)."""


class BytePipe(Protocol):
    """A stream of bytes in both directions between us and one command on a host."""

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes; blocks; ``b""`` at the end."""

    def write(self, data: bytes) -> None:
        """Write all of ``data``; raises OSError if the other end has closed."""

    def close(self) -> None:
        """End the command's connection; a blocked ``read`` returns; may be called twice."""

    def stderr(self) -> str:
        """What the host wrote on stderr so far (the last 64 KiB)."""

    def exit_status(self) -> int | None:
        """The command's exit status, or None while it runs or when none arrived."""


class Tail:
    """Drains a stream in its own thread, so that it never blocks its writer, and keeps the newest bytes.

    ``read`` blocks for bytes and returns ``b""`` at the end. ``marker`` is removed from the stream, and ``wait``
    reports it.
    """

    def __init__(self, read: Callable[[int], bytes], *, marker: bytes = b"") -> None:
        self._read = read
        self._marker = marker
        self._newest = bytearray()
        self._changed = threading.Condition()
        self._marker_seen = False
        self._ended = False
        self._thread = threading.Thread(target=self._drain, name="clusterddp-stderr", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """What was kept, as text."""
        with self._changed:
            return self._newest.decode(errors="replace")

    def wait(self, seconds: float) -> bool:
        """Wait until the marker was seen or the stream ended; return whether it was seen."""
        with self._changed:
            self._changed.wait_for(lambda: self._marker_seen or self._ended, seconds)
            return self._marker_seen

    def join(self, seconds: float) -> None:
        """Wait for the end of the stream."""
        self._thread.join(seconds)

    def _drain(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed by another thread: the end too
            while chunk := self._read(4096):
                self._append(chunk)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _append(self, chunk: bytes) -> None:
        """Keep the newest bytes, and remove the marker when it has come."""
        with self._changed:
            self._newest += chunk
            if self._marker and not self._marker_seen and self._marker in self._newest:
                before, _, after = bytes(self._newest).partition(self._marker)
                self._newest[:] = before + after
                self._marker_seen = True
                self._changed.notify_all()
            del self._newest[:-MAX_STDERR]


class ChildPipe:
    """A byte pipe over a child process in its own session (the terminal's Ctrl-C must not reach it)."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, marker: bytes = b"") -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env=env,
        )
        self._stdin, self._stdout, self._stderr = (
            stream.fileno()
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr)
            if stream is not None
        )
        self._tail = Tail(lambda size: os.read(self._stderr, size), marker=marker)
        self._closing = threading.Lock()
        self._closed = False
        self._stdout_ended = False

    def read(self, size: int) -> bytes:
        """See ``BytePipe``."""
        if self._closed:
            return b""
        data = os.read(self._stdout, size)
        self._stdout_ended = not data
        return data

    def write(self, data: bytes) -> None:
        """See ``BytePipe``."""
        view = memoryview(data)
        while view:
            if self._closed:  # since the last piece, too: by now the number may be another connection's
                raise BrokenPipeError("the pipe is closed")
            view = view[os.write(self._stdin, view) :]

    def stderr(self) -> str:
        """See ``BytePipe``."""
        return self._tail.text()

    def exit_status(self) -> int | None:
        """See ``BytePipe``. Waits for it once stdout has ended; death by signal N is 128+N."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(EXIT_STATUS_TIMEOUT if self._stdout_ended else 0)
            self._tail.join(LAST_STDERR_TIMEOUT)  # a caller that asks for the status also reads stderr
            return shell_code(code)
        return None

    def wait_for_marker(self, seconds: float) -> bool:
        """Wait until the child wrote the marker on stderr (True) or ended without it (False)."""
        return self._tail.wait(seconds)

    def close(self) -> None:
        """See ``BytePipe``: close stdin, then end the child and its process group."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self._process.stdin:
                self._process.stdin.close()
            end(self._process, EOF_TIMEOUT)
            self._tail.join(TERM_TIMEOUT)
            self._stderr = -1  # a child of the child may hold it open: the number will be another connection's
            for stream in (self._process.stdout, self._process.stderr):
                if stream:
                    stream.close()


def end(process: subprocess.Popen[bytes], timeout: float = 0) -> None:
    """End a child that leads a session, and its group: wait ``timeout`` seconds, then TERM, then KILL."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        # Only before it is reaped: the group's number cannot have been given to anybody else.
        if number is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
                os.killpg(process.pid, signal.SIGCONT)  # a stopped process handles TERM only when continued
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait({None: timeout, signal.SIGKILL: KILL_TIMEOUT}.get(number, TERM_TIMEOUT))
            return
