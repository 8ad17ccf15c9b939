"""Limit a listener's connections that have not authenticated yet: a fixed number, and the oldest is closed first."""

import contextlib
import socket
import threading
from collections import OrderedDict


class UnprovenConnections:
    """The connections that have not authenticated yet, at most ``most`` at once; may be used from any thread."""

    def __init__(self, most: int) -> None:
        self._limit = most
        self._lock = threading.Lock()
        self._connections: "OrderedDict[socket.socket, None]" = OrderedDict()

    def add(self, connection: socket.socket) -> None:
        """Count a new connection, and end the oldest where the limit is exceeded."""
        with self._lock:
            self._connections[connection] = None
            if len(self._connections) > self._limit:
                end_connection(self._connections.popitem(last=False)[0])

    def discard(self, connection: socket.socket) -> None:
        """Stop counting a connection: it has authenticated, or it has ended."""
        with self._lock:
            self._connections.pop(connection, None)


def end_connection(connection: socket.socket) -> None:
    """End a connection, or stop listening, from any thread; threads that wait in it wake, which closing would not do.

    With TLS, only the socket below it is shut down: the thread that uses the connection holds its TLS state.
    """
    with contextlib.suppress(OSError):  # it has ended already
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
