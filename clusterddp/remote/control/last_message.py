"""Report to other nodes, after the supervisor's death, that this node's part has ended, proved by the run's key.

Every node that calls or asks on run control's port gets that one answer. A refused connection proves much less: it may
come from a network device, or from a host whose processes continue to run.
"""

import selectors
import socket
from typing import Dict

from ..shared.schema.fields import DamagedError
from ..system.clock import boot_clock
from .connection import PeerConnection, ProtocolError, Secret
from .messages import Ask, Call

PROOF_TIMEOUT = 2.0  # seconds from the start of a connection to its proof
MAX_CONNECTIONS = 64  # connections open at once
FURTHER_ANSWERS_TIME = 5.0  # seconds after the first answer in which other nodes may ask too


def answer(listener: socket.socket, secret: Secret, seconds: float) -> None:
    """Answer callers for ``seconds``, but for ``FURTHER_ANSWERS_TIME`` at most after the first answer."""
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
            link = open_links.get(key.data)
            if link is None:  # closed a moment ago to make room
                continue
            finished, answered = _read_and_answer(link)
            if answered:
                deadline = min(deadline, boot_clock() + FURTHER_ANSWERS_TIME)
            if finished:
                _close_link(link, selector, open_links)
        for link in [link for link in open_links.values() if boot_clock() - link.began > PROOF_TIMEOUT]:
            _close_link(link, selector, open_links)


def _accept(
    listener: socket.socket,
    secret: Secret,
    selector: selectors.BaseSelector,
    open_links: Dict[socket.socket, PeerConnection],
) -> None:
    try:
        connection, address = listener.accept()
    except OSError:  # the caller has disconnected, or no descriptor is free: it tries again
        return
    if len(open_links) >= MAX_CONNECTIONS:
        _close_link(next(iter(open_links.values())), selector, open_links)
    link = PeerConnection(connection, secret, address=str(address[0]))
    open_links[connection] = link
    selector.register(connection, selectors.EVENT_READ, connection)
    link.greet()


def _read_and_answer(link: PeerConnection) -> "tuple[bool, bool]":
    """Read a connection; return whether it is finished and whether a caller that knows the key was answered."""
    is_open = link.receive()
    try:
        message = link.next()
        if message is None:
            return not is_open, False
        if not isinstance(message, (Call, Ask)):
            return True, False
        link.send_ended(link.check_call(message))
    except (ProtocolError, DamagedError):
        return True, False
    return True, True


def _close_link(
    link: PeerConnection, selector: selectors.BaseSelector, open_links: Dict[socket.socket, PeerConnection]
) -> None:
    selector.unregister(link.socket)
    del open_links[link.socket]
    link.socket.close()
