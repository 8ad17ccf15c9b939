"""Connections of a listener that have not proved yet who they are: a limited number, of which the oldest gives way."""

import contextlib
import socket
import threading
from collections import OrderedDict


class Strangers:
    """Who is connected without having proved anything; may be used from any thread.

    Args:
        most: So many at once; one more ends the oldest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._connections: "OrderedDict[socket.socket, None]" = OrderedDict()

    def add(self, connection: socket.socket) -> None:
        """Count a new connection, and end the oldest where it is one too many."""
        with self._lock:
            self._connections[connection] = None
            if len(self._connections) > self._most:
                end_connection(self._connections.popitem(last=False)[0])

    def discard(self, connection: socket.socket) -> None:
        """Count it no more: it has proved itself, or it has ended."""
        with self._lock:
            self._connections.pop(connection, None)


def end_connection(connection: socket.socket) -> None:
    """End a connection, or stop listening, from any thread: whoever waits in it wakes, which closing it would not do.

    Of TLS only what lies below is shut down: the thread that uses it holds its state.
    """
    with contextlib.suppress(OSError):  # it has ended already
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
