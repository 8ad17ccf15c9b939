"""A host's login shell on the user's own terminal: keys there, the screen here, until the shell ends.

``~.`` at the beginning of a line hangs up, as with ssh.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import termios
import threading
import time
import tty
from typing import TYPE_CHECKING, Any

from clusterddp.errors import ClusterddpError, HelperError
from clusterddp.hosts.outgoing import Outgoing
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.wire.frames import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterddp.hosts.client import Host

_PIECE = 1 << 15
_AGAIN = 0.5  # seconds


def run_shell(host: Host, args: Mapping[str, Any]) -> int:
    """Run the login shell of ``host`` on this process's terminal; its exit code, 128+N for a signal.

    Args:
        host: Where.
        args: What the operation ``exec`` takes, and ``spool``.

    Raises:
        HostError: the connection broke, or the shell cannot be started.
    """
    outgoing = Outgoing()
    size = shutil.get_terminal_size()
    term = os.environ.get("TERM", "dumb")
    frames = host.stream("shell", {**args, "rows": size.lines, "columns": size.columns, "term": term}, outgoing)
    with _raw_terminal(), _following_the_window(outgoing), contextlib.closing(frames):
        threading.Thread(target=_send_keys, args=(outgoing,), name="keys", daemon=True).start()
        for frame in frames:
            if frame.header["kind"] == "end":
                return _code(host.name, frame.body)
            _write_all(frame.body)
    return 0  # hung up


def _code(host: str, told: bytes) -> int:
    try:
        return Fields(parse_json(told)).number("code", 255)
    except ValueError as error:
        raise HelperError(host, f"its answer is damaged: {error}") from error


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Every key goes to the host, Ctrl-C too; where stdin is no terminal nothing changes."""
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
def _following_the_window(outgoing: Outgoing) -> Iterator[None]:
    def tell(*_: object) -> None:
        size = shutil.get_terminal_size()
        with contextlib.suppress(ClusterddpError):  # the thread that draws tells of it
            outgoing.order(rows=size.lines, columns=size.columns)

    before = signal.signal(signal.SIGWINCH, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def _send_keys(outgoing: Outgoing) -> None:
    escape = Escape()
    with contextlib.suppress(ClusterddpError, OSError):  # the thread that draws tells of it
        while data := os.read(0, _PIECE):
            keys, leave = escape.take(data)
            if not outgoing.send(keys):
                return
            if leave:
                outgoing.leave()
                return
        # On a terminal nothing else says that no more comes; one that is sent before the shell reads is lost.
        while outgoing.send(escape.end_of_input):
            time.sleep(_AGAIN)


class Escape:
    """Finds ``~.`` at the beginning of a line among keys; ``~~`` there is one ``~``."""

    def __init__(self) -> None:
        self._begins = True  # a line
        self._tilde = False  # is held back

    @property
    def end_of_input(self) -> bytes:
        """Ctrl-D, which on a terminal ends the input at the beginning of a line, and within one at the second time."""
        return b"\x04" if self._begins else b"\x04\x04"

    def take(self, data: bytes) -> tuple[bytes, bool]:
        """The keys to send, and whether the user hangs up."""
        keys = bytearray()
        for key in data:
            if self._tilde:
                self._tilde = False
                if key == ord("."):
                    return bytes(keys), True
                keys += b"~" if key != ord("~") else b""
            elif self._begins and key == ord("~"):
                self._tilde, self._begins = True, False
                continue
            keys.append(key)
            self._begins = key in b"\r\n"
        return bytes(keys), False
