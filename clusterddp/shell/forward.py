"""Makes hosts' ports available on this machine: connections to a local port go through the host's SSH connection.

Only this machine can use them (127.0.0.1), and the host's end is its own loopback, so a TensorBoard or Jupyter that
listens only there is reached, and nothing new is opened to any network.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, UsageError
from clusterddp.hosts.outgoing import Outgoing
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.shell.command_records import ForwardRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.hosts.client import Host

_READ_SIZE = 1 << 15
_RETRY = 0.1  # seconds until the next connection is accepted, after one could not be
_LOOPBACK = "127.0.0.1"
_MAX_PORT = 65535
_MAX_DIGITS = 9  # the most digits of a number


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardSpec:
    """What ``forward`` is given: a port of a rank, of a host, or (if neither) of the first node."""

    port: int
    rank: int | None = None
    host: str = ""


def forward_spec(text: str) -> ForwardSpec:
    """Parse ``[RANK|HOST:]PORT``; ``UsageError`` for anything else."""
    owner, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdecimal()) or len(number) > _MAX_DIGITS or not 1 <= int(number) <= _MAX_PORT:
        raise UsageError(f"{text!r} is no port", remedy="write 6006, 0:6006 (rank 0's) or gpu01:6006")
    if owner.isascii() and owner.isdecimal() and len(owner) <= _MAX_DIGITS:
        return ForwardSpec(port=int(number), rank=int(owner))
    return ForwardSpec(port=int(number), host=owner.strip("[]"))


class Forward:
    """A local listener for one port of a host, until it is closed.

    ``open_host`` returns the connected host, connecting it anew if necessary. ``notify`` is called with a connection's
    error, once for each text. ``local_port`` is the port here: the same number if it is free.
    """

    def __init__(self, open_host: Callable[[], Host], port: int, notify: Callable[[str], None]) -> None:
        self._open_host, self._port, self._notify = open_host, port, notify
        self._reported: set[str] = set()
        self._closed = threading.Event()
        self._listener = _listen(port)
        self.local_port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name=f"forward {port}", daemon=True).start()

    def close(self) -> None:
        """Stop listening; connections that are open end with those of the host."""
        self._closed.set()
        with contextlib.suppress(OSError):  # already closed
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
                self._serve(client)
            except (OSError, RuntimeError) as error:  # it was closed; or for now there are no more files or threads
                if not self._closed.wait(_RETRY):
                    self._notify_once(f"port {self.local_port} takes no connection for now: {error}")

    def _serve(self, client: socket.socket) -> None:
        """Forward a client in a thread of its own; without one it is not left waiting."""
        try:
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()
        except RuntimeError:
            client.close()
            raise

    def _forward(self, client: socket.socket) -> None:
        """Connect a client to the host's port, and pass on what either sends, until one closes."""
        outgoing = Outgoing()
        with client:
            try:
                frames = self._open_host().stream("forward", to_fields(ForwardRequest(self._port)), outgoing)
                threading.Thread(target=_send, args=(client, outgoing), daemon=True).start()
                with contextlib.closing(frames):
                    for frame in frames:
                        if frame.kind == "data":
                            client.sendall(frame.body)
            except ClusterddpError as error:
                self._notify_once(str(error))
            except OSError:  # the client has gone
                pass
            finally:
                with contextlib.suppress(OSError):  # the client has gone
                    client.shutdown(socket.SHUT_RDWR)

    def _notify_once(self, line: str) -> None:
        """Report an error unless the same was reported before."""
        if line not in self._reported:
            self._reported.add(line)
            self._notify(line)


def _send(client: socket.socket, outgoing: Outgoing) -> None:
    """Send the host what the client writes."""
    with contextlib.suppress(OSError, ClusterddpError):  # one end has closed, which the other is told below
        while data := client.recv(_READ_SIZE):
            if not outgoing.send(data):
                return
    with contextlib.suppress(ClusterddpError):  # the host is lost, which the thread that reads reports
        outgoing.end()


def _listen(port: int) -> socket.socket:
    """Listen on this port; if it is in use or not permitted, on any free one."""
    for candidate in (port, 0):
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((_LOOPBACK, candidate))
            listener.listen()
        except OSError:
            listener.close()
            if not candidate:
                raise
        else:
            return listener
    raise AssertionError
