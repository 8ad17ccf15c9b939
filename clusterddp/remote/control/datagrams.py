"""Beats as UDP datagrams on the port of run control: one that is lost holds up no later one, as it does in TCP.

A datagram is the sender's place, a beat's fields and an HMAC with a key of its own of that connection and direction
(control/connection.py), so it counts only where the connection stands, and a repeated one is older than the newest.
Where UDP is filtered nothing is heard here; the same beats go over TCP.
"""

import hashlib
import hmac
import socket
import struct
from typing import Callable, List, Optional, Tuple

from .connection import Address, PeerConnection
from .messages import Beat

_BEAT = struct.Struct(">HQQd?")
_TAG = hashlib.sha256().digest_size
MOST = 256  # datagrams taken in one turn of the loop
SECONDS = 1e6  # the largest age


class Datagrams:
    """The UDP socket beside a listener; where the port is another program's, none.

    Args:
        listener: Run control's.
    """

    def __init__(self, listener: socket.socket) -> None:
        self.socket: Optional[socket.socket] = socket.socket(listener.family, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        try:
            self.socket.bind(listener.getsockname())
        except OSError:
            self.close()

    def send(self, link: PeerConnection, beat: Beat, address: Address) -> None:
        """Send a beat to the other end of a connection; a full socket or a dead way loses it, as the network may."""
        if self.socket is None or not link.beat_keys:
            return
        data = _BEAT.pack(link.secret.place, beat.number, beat.echo, beat.age, beat.majority)
        try:
            self.socket.sendto(data + _tag(link.beat_keys[0], data), address)
        except OSError:  # TCP says so, or the next one comes through
            pass

    def receive(self, known: Callable[[int], Optional[PeerConnection]]) -> List[Tuple[PeerConnection, Beat]]:
        """The beats that have come, each with its connection; whatever else came is thrown away.

        Args:
            known: The proved connection to a place, or None.
        """
        found = []
        for _ in range(MOST):
            try:
                data = self.socket.recv(_BEAT.size + _TAG + 1) if self.socket else b""
            except OSError:  # there is none, or an earlier one of ours reached nobody
                break
            link, beat = self._read(data, known)
            if link and beat:
                found.append((link, beat))
        return found

    @staticmethod
    def _read(
        data: bytes, known: Callable[[int], Optional[PeerConnection]]
    ) -> Tuple[Optional[PeerConnection], Optional[Beat]]:
        if len(data) != _BEAT.size + _TAG:
            return None, None
        text, tag = data[: _BEAT.size], data[_BEAT.size :]
        place, number, echo, age, majority = _BEAT.unpack(text)
        link = known(place)
        if not link or not link.beat_keys or not hmac.compare_digest(tag, _tag(link.beat_keys[1], text)):
            return None, None
        if not 0.0 <= age <= SECONDS:
            return None, None
        return link, Beat(majority, number, echo, age)

    def close(self) -> None:
        """Send and hear nothing more."""
        if self.socket:
            self.socket.close()
        self.socket = None


def _tag(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()
