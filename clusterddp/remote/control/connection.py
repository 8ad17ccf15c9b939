"""One connection of run control: bytes in and out, the proof on both sides that they know the run's key, frames.

    called:  Hello      nonce
    caller:  Call       both places, nonce, proof, or
             Ask        the same: "has your part ended for good?"
    called:  Lead       proof          "I lead you from now on", or
             Elsewhere  place, proof   "ask that one", and the connection ends, or
             Gone       proof          "my part has ended for good", and the connection ends

A proof is an HMAC over the role of who gives it, the run, both places and both nonces: what was heard on another
connection, or meant for another node or run, is worth nothing. From the same values come two keys, one for each
direction, and two more for beats as datagrams (control/datagrams.py). After Lead every frame carries an HMAC over its
number and its bytes: who stands between can delay and end a connection, and nothing else. Frames are not encrypted:
nothing in them is secret.

A frame is a 4-byte big-endian length and a message of so many bytes; after the proof 32 bytes of HMAC follow.
"""

import errno
import hashlib
import hmac
import json
import os
import socket
import struct
from typing import NamedTuple, Optional, Tuple, Union

from ..system.clock import boot_clock
from . import messages
from .contact import NEVER, Echoes
from .messages import Ask, Call, Elsewhere, Gone, Hello, Lead, Message

PROTOCOL = "clusterddp run control 3"
MOST_UNPROVED = 512  # bytes of a message before the proof
MOST_PROVED = 64 * 1024  # and after it
MOST_UNSENT = 32 << 20  # bytes that wait for a peer that does not read
BLOCK = 1 << 16
_TAG = hashlib.sha256().digest_size
THIN_LINEAR_TIMEOUTS, RTO_MAX_MS = 16, 44  # of TCP on Linux; Python has no names for them
LONGEST_RETRY = 1000  # ms between two tries to send a lost segment: a doubled pause outlasts what was wrong

Address = Tuple[str, int]


class Broken(Exception):
    """The other side sent no frame of ours, or cannot prove that it knows the key."""


class Secret(NamedTuple):
    """What a node of a run can prove: ``key`` is the run's, ``place`` our own."""

    key: bytes
    run: str
    place: int


class PeerConnection:
    """One connection.

    Args:
        connection: The socket.
        secret: Ours.
        target: The place we call; None if we were called.
        address: The other side's.
    """

    def __init__(
        self, connection: socket.socket, secret: Secret, target: Optional[int] = None, address: str = ""
    ) -> None:
        connection.setblocking(False)
        _retry_soon(connection)
        self.socket = connection
        self.secret = secret
        self.target = target
        self.address = address
        self.nonce = os.urandom(messages.NONCE // 2).hex()
        self.theirs = ""  # the other side's nonce
        self.place: Optional[int] = None  # the other side's, once proved
        self.refused = False  # nobody listens there any more
        self.unread = bytearray()
        self.unsent = bytearray()
        self.began = self.heard = boot_clock()
        self.beat = self.beat_tcp = NEVER  # when we last sent one: at all, and over this connection
        self.echoes = Echoes()
        self.datagrams = False  # whether one was ever heard from there
        self.asks = False  # we only ask whether its part has ended
        self.beat_keys: Optional[Tuple[bytes, bytes]] = None  # of beats that we send, and receive, as datagrams
        self._keys: Optional[Tuple[bytes, bytes]] = None  # of what we send, of what we receive
        self._sent = self._received = 0  # frames with an HMAC

    @classmethod
    def to(cls, address: Address, secret: Secret, target: int) -> "PeerConnection":
        """Call an address; whether somebody answers is seen by reading.

        Raises:
            OSError: there is no way there, or no socket left.
        """
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        status = connection.connect_ex(address)
        if status not in (0, errno.EINPROGRESS):
            connection.close()
            raise OSError(status, os.strerror(status))
        return cls(connection, secret, target, address[0])

    def receive(self) -> bool:
        """Read what has come, for ``next``; False when the connection has ended."""
        try:
            data = self.socket.recv(BLOCK)
        except BlockingIOError:
            return True
        except OSError as error:
            self.refused = isinstance(error, ConnectionRefusedError)
            return False
        self.unread += data
        return bool(data)

    def next(self) -> Optional[Message]:
        """The next whole message that was read, or None.

        Raises:
            Broken, DamagedError: it is none of ours; the connection is of no more use.
        """
        if len(self.unread) < 4:
            return None
        (size,) = struct.unpack_from(">I", self.unread)
        if size > (MOST_PROVED if self._keys else MOST_UNPROVED):
            raise Broken("a frame of %d bytes" % size)
        end = 4 + size + (_TAG if self._keys else 0)
        if len(self.unread) < end:
            return None
        frame = bytes(self.unread[:end])
        del self.unread[:end]
        if self._keys:
            frame, tag = frame[:-_TAG], frame[-_TAG:]
            if not hmac.compare_digest(tag, _tag(self._keys[1], self._received, frame)):
                raise Broken("a frame that was changed, repeated or left out")
            self._received += 1
        self.heard = boot_clock()
        return messages.decode(frame[4:])

    def send(self, message: Message) -> bool:
        """Send a message, or what the socket takes of it now; False if the connection has ended."""
        payload = messages.encode(message)
        frame = struct.pack(">I", len(payload)) + payload
        if self._keys:
            frame += _tag(self._keys[0], self._sent, frame)
            self._sent += 1
        self.unsent += frame
        return self.flush() and len(self.unsent) <= MOST_UNSENT

    def flush(self) -> bool:
        """Send what waits; False if the connection has ended."""
        try:
            sent = self.socket.send(self.unsent) if self.unsent else 0
            del self.unsent[:sent]
        except BlockingIOError:
            pass  # the loop tries again when there is room
        except OSError:
            return False
        return True

    # The caller's side

    def introduce(self, hello: Hello) -> bool:
        """Answer the called side's nonce."""
        self.theirs = hello.nonce
        kind, role = (Ask, "asks") if self.asks else (Call, "caller")
        return self.send(kind(self.secret.place, self.target or 0, self.nonce, self._proof(role)))

    def follow(self, answer: Lead) -> None:
        """The called side leads us, if it knows the key.

        Raises:
            Broken: it does not.
        """
        self._compare("lead", answer.proof)
        self._prove(self.target or 0)

    def check_elsewhere(self, answer: Elsewhere) -> None:
        """Does who sends us on know the key?

        Raises:
            Broken: no.
        """
        self._compare("elsewhere %d" % answer.place, answer.proof)

    def check_gone(self, answer: Gone) -> None:
        """Does who says that its part has ended know the key?

        Raises:
            Broken: no.
        """
        self._compare("gone", answer.proof)

    # The called side

    def greet(self) -> bool:
        """Say our nonce."""
        return self.send(Hello(self.nonce))

    def check_call(self, call: Union[Call, Ask]) -> int:
        """The place of who calls or asks, if it knows the key and means us.

        Raises:
            Broken: it does not.
        """
        self.theirs = call.nonce
        self._compare("caller" if isinstance(call, Call) else "asks", call.proof, call.caller)
        if call.called != self.secret.place or call.caller == self.secret.place:
            raise Broken("place %d calls place %d" % (call.caller, call.called))
        return call.caller

    def welcome(self, place: int) -> bool:
        """Lead the caller."""
        sent = self.send(Lead(self._proof("lead", place)))
        self._prove(place)
        return sent

    def send_elsewhere(self, place: int, lead: int) -> bool:
        """Name another one to the caller at ``place``."""
        return self.send(Elsewhere(lead, self._proof("elsewhere %d" % lead, place)))

    def send_gone(self, place: int) -> bool:
        """Say to the caller at ``place`` that our part has ended for good."""
        return self.send(Gone(self._proof("gone", place)))

    # Proofs

    def _prove(self, place: int) -> None:
        """From now on frames are authenticated."""
        self.place = place
        ours, other = ("called", "caller") if self.target is None else ("caller", "called")
        self._keys = (self._mac("frames of " + ours, place), self._mac("frames of " + other, place))
        self.beat_keys = (self._mac("beats of " + ours, place), self._mac("beats of " + other, place))

    def _mac(self, role: str, place: Optional[int]) -> bytes:
        """HMAC over role, run, the caller's and the called place and nonce; ``place``: the other side's."""
        called = self.target is None
        mine, theirs = (self.secret.place, self.nonce), (place if called else self.target, self.theirs)
        caller, callee = (theirs, mine) if called else (mine, theirs)
        text = json.dumps([PROTOCOL, role, self.secret.run, caller, callee])
        return hmac.new(self.secret.key, text.encode(), hashlib.sha256).digest()

    def _proof(self, role: str, place: Optional[int] = None) -> str:
        return self._mac(role, place).hex()

    def _compare(self, role: str, proof: str, place: Optional[int] = None) -> None:
        if not hmac.compare_digest(self._proof(role, place), proof):
            raise Broken("it does not know the run's key, or means another node")


def _retry_soon(connection: socket.socket) -> None:
    """Have the kernel send lost segments again soon, as far as it knows how."""
    for option, value in ((THIN_LINEAR_TIMEOUTS, 1), (RTO_MAX_MS, LONGEST_RETRY), (socket.TCP_NODELAY, 1)):
        try:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError:  # an older kernel
            pass


def _tag(key: bytes, number: int, frame: bytes) -> bytes:
    return hmac.new(key, struct.pack(">Q", number) + frame, hashlib.sha256).digest()
