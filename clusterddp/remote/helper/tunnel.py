"""Carry one connection of this host through a request, both ways."""

import selectors
import socket

from .request import Request

PIECE = 1 << 15


def tunnel(request: Request, connection: socket.socket) -> None:
    """Copy what either side sends to the other, until both have ended, or the connection is reset."""
    connection.setblocking(False)
    try:
        _copy_both_ways(request, connection)
    except ConnectionError:  # the operator sees the end of the stream
        pass


def _copy_both_ways(request: Request, connection: socket.socket) -> None:
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
