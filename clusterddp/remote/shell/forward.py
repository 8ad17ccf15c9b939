"""The operation ``forward``: tunnel one TCP connection to a port on this host's loopback through a request."""

import selectors
import socket
from typing import Any, Dict

from ..helper.request import Request
from ..shared.shell.command_records import ForwardRequest
from ..system.bootstrap import Refused

PIECE = 1 << 15
CONNECT_TIMEOUT = 5.0  # seconds to connect


def forward(request: Request) -> Dict[str, Any]:
    """Forward bytes to the port of a ``ForwardRequest`` until both directions have ended; raises Refused."""
    with _connect(request.read_args(ForwardRequest).port) as connection:
        connection.setblocking(False)
        try:
            _forward_bytes(request, connection)
        except (ConnectionError, BrokenPipeError):  # it was reset: the other side sees the end of the stream
            pass
    return {}


def _connect(port: int) -> socket.socket:
    for address in ("127.0.0.1", "::1"):
        try:
            return socket.create_connection((address, port), timeout=CONNECT_TIMEOUT)
        except OSError:  # try the other family before reporting it
            continue
    raise Refused("nothing answers on its port %d" % port, "start it there, on 127.0.0.1 or all addresses")


def _forward_bytes(request: Request, connection: socket.socket) -> None:
    """Copy the operator's data to the connection, and what it sends to the operator."""
    waiting = bytearray()
    reading = sending = True  # from the connection; to it
    ended = False  # the operator's data is complete
    with selectors.DefaultSelector() as selector:
        selector.register(request.handle, selectors.EVENT_READ)
        selector.register(connection, selectors.EVENT_READ)
        while reading:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waiting else 0)
            selector.modify(connection, events)
            for key, ready in selector.select():
                if key.fd == request.handle:
                    frames, ended = request.take()
                    waiting += b"".join(frame.body for frame in frames)
                    if ended:
                        selector.unregister(request.handle)
                    continue
                if ready & selectors.EVENT_READ:
                    data = connection.recv(PIECE)
                    reading = bool(data)
                    if data:
                        request.send(data)
                if ready & selectors.EVENT_WRITE and waiting:
                    sent = connection.send(bytes(waiting[:PIECE]))
                    request.grant(sent)
                    del waiting[:sent]
            if ended and sending and not waiting:
                connection.shutdown(socket.SHUT_WR)
                sending = False
