"""Send and receive heartbeats as UDP datagrams on run control's port: a lost one does not delay later ones, unlike TCP.

A datagram holds the sender's member index, a heartbeat's fields and an HMAC with a separate key of that connection and
direction (control/connection.py). So it counts only while the connection exists, and a replayed one is ignored as old.
Where UDP is filtered nothing arrives here; the same heartbeats are also sent over TCP.
"""

import hashlib
import hmac
import socket
import struct
from typing import Callable, List, Optional, Tuple

from .connection import Address, PeerConnection
from .contact import MAX_AGE
from .messages import Heartbeat

_HEARTBEAT = struct.Struct(">HQQd?")
_TAG = hashlib.sha256().digest_size
MAX_DATAGRAMS = 256  # datagrams received in one turn of the loop


class Datagrams:
    """The UDP socket on run control's TCP port, or none where another program has that UDP port."""

    def __init__(self, listener: socket.socket) -> None:
        self.socket: Optional[socket.socket] = socket.socket(listener.family, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        try:
            self.socket.bind(listener.getsockname())
        except OSError:
            self.close()

    def send(self, link: PeerConnection, heartbeat: Heartbeat, address: Address) -> None:
        """Send a heartbeat to the other end of a connection; it is lost without an error if the socket fails."""
        if self.socket is None or not link.heartbeat_keys:
            return
        data = _HEARTBEAT.pack(link.secret.member, heartbeat.number, heartbeat.echo, heartbeat.age, heartbeat.majority)
        try:
            self.socket.sendto(data + _tag(link.heartbeat_keys[0], data), address)
        except OSError:  # the TCP connection shows the fault, or the next datagram gets through
            pass

    def receive(self, link_of: Callable[[int], Optional[PeerConnection]]) -> List[Tuple[PeerConnection, Heartbeat]]:
        """Return the received heartbeats, each with its connection (``link_of`` its member); discard the rest."""
        received = []
        for _ in range(MAX_DATAGRAMS):
            try:
                data = self.socket.recv(_HEARTBEAT.size + _TAG + 1) if self.socket else b""
            except OSError:  # none is left, or an ICMP error answers an earlier one of ours
                break
            link, heartbeat = self._read(data, link_of)
            if link and heartbeat:
                received.append((link, heartbeat))
        return received

    @staticmethod
    def _read(
        data: bytes, link_of: Callable[[int], Optional[PeerConnection]]
    ) -> Tuple[Optional[PeerConnection], Optional[Heartbeat]]:
        """Decode a datagram; None for one that is invalid, or of no connection."""
        if len(data) != _HEARTBEAT.size + _TAG:
            return None, None
        text, tag = data[: _HEARTBEAT.size], data[_HEARTBEAT.size :]
        member, number, echo, age, majority = _HEARTBEAT.unpack(text)
        link = link_of(member)
        if not link or not link.heartbeat_keys or not hmac.compare_digest(tag, _tag(link.heartbeat_keys[1], text)):
            return None, None
        if not 0.0 <= age <= MAX_AGE:
            return None, None
        return link, Heartbeat(majority, number, echo, age)

    def close(self) -> None:
        """Close the socket; nothing is sent or received any more."""
        if self.socket:
            self.socket.close()
        self.socket = None


def _tag(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()
