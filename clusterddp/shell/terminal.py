"""Runs a host's login shell on the user's own terminal, until it ends or ``~.`` at the beginning of a line hangs up."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import termios
import threading
import time
import tty
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, HelperError
from clusterddp.hosts.outgoing import Outgoing
from clusterddp.remote.shared.schema.record import parse_record, read_record, to_fields
from clusterddp.remote.shared.shell.command_records import ShellEnd, ShellRequest, WindowSize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.client import Host
    from clusterddp.remote.shared.shell.command_records import WorkerPlace

_READ_SIZE = 1 << 15
_REPEAT_INTERVAL = 0.5  # seconds between repeated Ctrl-Ds


def run_shell(host: Host, place: WorkerPlace | None, spool: str) -> int:
    """Run the login shell of ``host`` on this process's terminal, and return its exit code, 128+N for a signal.

    It gets the environment and folder of the run with this ``spool`` there, else (empty) those of ``place``, else
    (None) the login's.
    """
    outgoing = Outgoing()
    request = ShellRequest(window=_window_size(), term=os.environ.get("TERM", "dumb"), place=place, spool=spool)
    frames = host.stream("shell", to_fields(request), outgoing)
    with _raw_terminal(), report_window_size(outgoing), contextlib.closing(frames):
        threading.Thread(target=_send_keys, args=(outgoing,), name="keys", daemon=True).start()
        for frame in frames:
            if frame.kind == "end":
                return _exit_code(host.name, frame.body)
            _write_all(frame.body)
    return 0  # the user hung up


def _exit_code(host: str, answer: bytes) -> int:
    try:
        return parse_record(answer, lambda data: read_record(ShellEnd, data, "end")).code
    except ValueError as error:
        raise HelperError(host, f"its answer is damaged: {error}") from error


def _window_size() -> WindowSize:
    size = shutil.get_terminal_size()
    return WindowSize(rows=size.lines, columns=size.columns)


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Pass every key to the host, Ctrl-C too; if stdin is not a terminal, change nothing."""
    if not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def report_window_size(outgoing: Outgoing) -> Iterator[None]:
    """Tell the host the terminal's size whenever it changes."""
    changes = queue.SimpleQueue[bool]()  # whether the shell still runs

    def report() -> None:
        with contextlib.suppress(ClusterddpError):  # the thread that reads the shell's output reports it
            while changes.get():
                outgoing.order(**to_fields(_window_size()))

    threading.Thread(target=report, name="window size", daemon=True).start()
    # The handler itself must not write: the thread that it interrupts may hold the connection's lock.
    before = signal.signal(signal.SIGWINCH, lambda *_: changes.put(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
        changes.put(False)


def _send_keys(outgoing: Outgoing) -> None:
    """Send the host what is typed, until the input ends or the user hangs up."""
    escape = Escape()
    with contextlib.suppress(ClusterddpError, OSError):  # the thread that reads the shell's output reports it
        while data := os.read(0, _READ_SIZE):
            keys, leave = escape.take(data)
            if not outgoing.send(keys):
                return
            if leave:
                outgoing.leave()
                return
        # On a terminal only Ctrl-D ends the input. Repeated, because one sent before the shell reads is lost.
        while outgoing.send(escape.end_of_input):
            time.sleep(_REPEAT_INTERVAL)


class Escape:
    """Detects ``~.`` at the beginning of a line among keys; ``~~`` there stands for one ``~``."""

    def __init__(self) -> None:
        self._at_line_start = True  # the next key is the first of a line
        self._tilde_held = False  # a ``~`` is held back until the next key

    @property
    def end_of_input(self) -> bytes:
        """Ctrl-D, which ends the input at the beginning of a line; within a line it takes two."""
        return b"\x04" if self._at_line_start else b"\x04\x04"

    def take(self, data: bytes) -> tuple[bytes, bool]:
        """The keys to send, and whether the user hangs up."""
        keys = bytearray()
        for key in data:
            if self._tilde_held:
                self._tilde_held = False
                if key == ord("."):
                    return bytes(keys), True
                keys += b"~" if key != ord("~") else b""
            elif self._at_line_start and key == ord("~"):
                self._tilde_held, self._at_line_start = True, False
                continue
            keys.append(key)
            self._at_line_start = key in b"\r\n"
        return bytes(keys), False
