"""What is left of a node whose supervisor was killed says so: its part has ended, proved by the run's key.

Who calls or asks on its port gets that one answer. A refused connection says much less: a port that nobody holds may be
a network's answer, or a host's whose processes go on.
"""

import selectors
import socket
from typing import Dict

from ..shared.schema.fields import DamagedError
from ..system.clock import boot_clock
from .connection import Broken, PeerConnection, Secret
from .messages import Ask, Call

LIMIT = 2.0  # seconds from a connection to its proof
MOST = 64  # connections at once
HEARD = 5.0  # seconds after the last answer in which others may ask too


def answer(listener: socket.socket, secret: Secret, seconds: float) -> None:
    """Answer for so many seconds at most, and for ``HEARD`` seconds after the last answer."""
    selector = selectors.DefaultSelector()
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    open_links: Dict[socket.socket, PeerConnection] = {}
    deadline = boot_clock() + seconds
    while boot_clock() < deadline:
        for key, _ in selector.select(0.25):
            if key.fileobj is listener:
                _accept(listener, secret, selector, open_links)
                continue
            link = open_links[key.data]
            over, answered = _hear(link)
            if answered:
                deadline = min(deadline, boot_clock() + HEARD)
            if over:
                _end(link, selector, open_links)
        for link in [link for link in open_links.values() if boot_clock() - link.began > LIMIT]:
            _end(link, selector, open_links)


def _accept(
    listener: socket.socket,
    secret: Secret,
    selector: selectors.BaseSelector,
    open_links: Dict[socket.socket, PeerConnection],
) -> None:
    try:
        connection, address = listener.accept()
    except OSError:  # the caller has left, or no descriptor is free: it calls again
        return
    if len(open_links) >= MOST:
        _end(next(iter(open_links.values())), selector, open_links)
    link = PeerConnection(connection, secret, address=str(address[0]))
    open_links[connection] = link
    selector.register(connection, selectors.EVENT_READ, connection)
    link.greet()


def _hear(link: PeerConnection) -> "tuple[bool, bool]":
    """Whether the connection is over, and whether somebody who knows the key was answered."""
    alive = link.receive()
    try:
        message = link.next()
        if message is None:
            return not alive, False
        if not isinstance(message, (Call, Ask)):
            return True, False
        link.send_gone(link.check_call(message))
    except (Broken, DamagedError):
        return True, False
    return True, True


def _end(
    link: PeerConnection, selector: selectors.BaseSelector, open_links: Dict[socket.socket, PeerConnection]
) -> None:
    selector.unregister(link.socket)
    del open_links[link.socket]
    link.socket.close()
