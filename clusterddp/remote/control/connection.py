"""One connection of run control: its bytes, its frames, and the mutual proof that both sides know the run's key.

    called:  Hello      nonce
    caller:  Call       both member indexes, nonce, proof, or
             Ask        the same: "has your part ended permanently?"
    called:  Accept     proof                 "I lead you from now on", or
             Redirect   member index, proof   "call that node", and the connection ends, or
             PartEnded  proof                 "my part has ended permanently", and the connection ends

A proof is an HMAC over the sender's role, the run, both member indexes and both nonces, so a proof recorded on another
connection, or made for another node or run, is worthless. The same values yield two keys, one for each direction, and
two more for heartbeats sent as datagrams (control/datagrams.py). After Accept every frame carries an HMAC over its
number and its digest: a man in the middle can delay or end a connection, but do nothing else. Frames are not encrypted
because nothing in them is secret.

A frame is a 4-byte big-endian length and a message of that many bytes; after the proof, 32 bytes of HMAC follow.
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
from .message_fields import NONCE_DIGITS
from .messages import Accept, Ask, Call, Hello, Message, PartEnded, Redirect

PROTOCOL = "clusterddp run control 4"
MAX_UNPROVEN_MESSAGE = 512  # bytes of a message before the proof
MAX_MESSAGE = 64 * 1024  # bytes of a message after the proof
MAX_UNSENT = 32 << 20  # bytes queued for a peer that does not read
READ_SIZE = 1 << 16  # bytes read at once
_TAG = hashlib.sha256().digest_size
THIN_LINEAR_TIMEOUTS, RTO_MAX_MS = 16, 44  # TCP options of Linux; Python has no names for them
MAX_RETRANSMIT_MS = 1000  # ms between two retransmissions: with doubled pauses TCP stalls longer than the network fault

Address = Tuple[str, int]


class ProtocolError(Exception):
    """The other side sent an invalid frame, or cannot prove that it knows the key."""


class Secret(NamedTuple):
    """The run's key and this node's identity in the run (``member``: its member index), as used in proofs."""

    key: bytes
    run: str
    member: int


class Frame:
    """A message as bytes, for any number of connections: what is the same on all of them is computed once."""

    def __init__(self, message: Message) -> None:
        payload = messages.encode(message)
        self.data = struct.pack(">I", len(payload)) + payload
        self.digest = hashlib.sha256(self.data).digest()


class PeerConnection:
    """One connection between two supervisors, connected or still connecting.

    ``target``: the member index that we call; None where the other side called us.
    """

    def __init__(
        self, connection: socket.socket, secret: Secret, target: Optional[int] = None, address: str = ""
    ) -> None:
        connection.setblocking(False)
        _retransmit_soon(connection)
        self.socket = connection
        self.secret = secret
        self.target = target
        self.address = address
        self.nonce = os.urandom(NONCE_DIGITS // 2).hex()
        self.their_nonce = ""
        self.member: Optional[int] = None  # the other side's member index, once proved
        self.dropped = False  # whether run control has given it up
        self.refused = False  # whether the connection was refused: nothing listens there any more
        self.unread = bytearray()  # received, and not taken by ``next`` yet
        self.unsent = bytearray()  # queued by ``send``
        self.began = self.received_at = boot_clock()
        self.sent_at = self.sent_tcp_at = NEVER  # when we last sent a heartbeat: by any means, and over this connection
        self.majority_at = NEVER  # when the other side last said that it leads a majority
        self.echoes = Echoes()
        self.datagrams = False  # whether a datagram ever came from the other side
        self.is_question = False  # whether we only ask if the other side's part has ended
        self.heartbeat_keys: Optional[Tuple[bytes, bytes]] = None  # for datagrams that we send, and that we receive
        self._keys: Optional[Tuple[bytes, bytes]] = None  # for frames that we send, and that we receive
        self._sent = self._received = 0  # numbers of frames with an HMAC

    @classmethod
    def connect(cls, address: Address, secret: Secret, target: int) -> "PeerConnection":
        """Begin to connect to an address; a failure later on is seen by ``receive``. Raises OSError."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        status = connection.connect_ex(address)
        if status not in (0, errno.EINPROGRESS):
            connection.close()
            raise OSError(status, os.strerror(status))
        return cls(connection, secret, target, address[0])

    def receive(self) -> bool:
        """Read the available bytes into the buffer of ``next``; return False when the connection has ended."""
        try:
            data = self.socket.recv(READ_SIZE)
        except BlockingIOError:
            return True
        except OSError as error:
            self.refused = isinstance(error, ConnectionRefusedError)
            return False
        self.unread += data
        return bool(data)

    def next(self) -> Optional[Message]:
        """Return the next complete message that was read, or None.

        Raises ProtocolError or DamagedError if the frame or message is invalid; the connection must be closed.
        """
        if len(self.unread) < 4:
            return None
        (size,) = struct.unpack_from(">I", self.unread)
        if size > (MAX_MESSAGE if self._keys else MAX_UNPROVEN_MESSAGE):
            raise ProtocolError("a frame of %d bytes" % size)
        end = 4 + size + (_TAG if self._keys else 0)
        if len(self.unread) < end:
            return None
        frame = bytes(self.unread[:end])
        del self.unread[:end]
        if self._keys:
            frame, tag = frame[:-_TAG], frame[-_TAG:]
            if not hmac.compare_digest(tag, _tag(self._keys[1], self._received, hashlib.sha256(frame).digest())):
                raise ProtocolError("a frame that was changed, repeated or left out")
            self._received += 1
        self.received_at = boot_clock()
        return messages.decode(frame[4:])

    def send(self, message: Message) -> bool:
        """Send a message or queue the part the socket does not take; return False if the connection has to end."""
        return self.send_frame(Frame(message))

    def send_frame(self, frame: Frame) -> bool:
        """Send a frame that may be sent over other connections too, as ``send`` does a message."""
        self.unsent += frame.data
        if self._keys:
            self.unsent += _tag(self._keys[0], self._sent, frame.digest)
            self._sent += 1
        return self.flush() and len(self.unsent) <= MAX_UNSENT

    def flush(self) -> bool:
        """Send queued bytes; return False if the connection has ended."""
        try:
            sent = self.socket.send(self.unsent) if self.unsent else 0
            del self.unsent[:sent]
        except BlockingIOError:
            pass  # the loop tries again when the socket is writable
        except OSError:
            return False
        return True

    # The caller's side

    def introduce(self, hello: Hello) -> bool:
        """Send our nonce and proof in answer to the called side's nonce."""
        self.their_nonce = hello.nonce
        kind, role = (Ask, "asks") if self.is_question else (Call, "caller")
        return self.send(kind(self.secret.member, self.target or 0, self.nonce, self._proof(role)))

    def check_accept(self, answer: Accept) -> None:
        """Check the proof of the called side, which leads us from now on; raises ProtocolError."""
        self._check_proof("accept", answer.proof)
        self._derive_keys(self.target or 0)

    def check_redirect(self, answer: Redirect) -> None:
        """Check the proof of a node that refers us to another one; raises ProtocolError."""
        self._check_proof("redirect %d" % answer.member, answer.proof)

    def check_ended(self, answer: PartEnded) -> None:
        """Check the proof of a node that reports that its part has ended; raises ProtocolError."""
        self._check_proof("ended", answer.proof)

    # The called side

    def greet(self) -> bool:
        """Send our nonce to the caller."""
        return self.send(Hello(self.nonce))

    def check_call(self, call: Union[Call, Ask]) -> int:
        """Check the proof of a caller and return its member index; raises ProtocolError."""
        self.their_nonce = call.nonce
        self._check_proof("caller" if isinstance(call, Call) else "asks", call.proof, call.caller)
        if call.called != self.secret.member or call.caller == self.secret.member:
            raise ProtocolError("member %d calls member %d" % (call.caller, call.called))
        return call.caller

    def welcome(self, member: int) -> bool:
        """Answer the caller at ``member`` that we lead it."""
        sent = self.send(Accept(self._proof("accept", member)))
        self._derive_keys(member)
        return sent

    def send_redirect(self, member: int, leader: int) -> bool:
        """Refer the caller at ``member`` to the leader that we follow."""
        return self.send(Redirect(leader, self._proof("redirect %d" % leader, member)))

    def send_ended(self, member: int) -> bool:
        """Report to the caller at ``member`` that our part has ended permanently."""
        return self.send(PartEnded(self._proof("ended", member)))

    # Proofs

    def _derive_keys(self, member: int) -> None:
        """Derive the keys; from now on frames are authenticated."""
        self.member = member
        ours, other = ("called", "caller") if self.target is None else ("caller", "called")
        self._keys = (self._mac("frames of " + ours, member), self._mac("frames of " + other, member))
        self.heartbeat_keys = (self._mac("heartbeats of " + ours, member), self._mac("heartbeats of " + other, member))

    def _mac(self, role: str, member: Optional[int]) -> bytes:
        """Compute the HMAC over role, run, and both sides' member index and nonce; ``member``: the other side's."""
        called = self.target is None
        mine, theirs = (self.secret.member, self.nonce), (member if called else self.target, self.their_nonce)
        caller, callee = (theirs, mine) if called else (mine, theirs)
        text = json.dumps([PROTOCOL, role, self.secret.run, caller, callee])
        return hmac.new(self.secret.key, text.encode(), hashlib.sha256).digest()

    def _proof(self, role: str, member: Optional[int] = None) -> str:
        return self._mac(role, member).hex()

    def _check_proof(self, role: str, proof: str, member: Optional[int] = None) -> None:
        """Raise ProtocolError unless the other side's proof is right."""
        if not hmac.compare_digest(self._proof(role, member), proof):
            raise ProtocolError("it does not know the run's key, or means another node")


def _retransmit_soon(connection: socket.socket) -> None:
    """Make the kernel retransmit lost segments quickly, where it supports the options."""
    for option, value in ((THIN_LINEAR_TIMEOUTS, 1), (RTO_MAX_MS, MAX_RETRANSMIT_MS), (socket.TCP_NODELAY, 1)):
        try:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError:  # an older kernel
            pass


def _tag(key: bytes, number: int, digest: bytes) -> bytes:
    """The HMAC of a frame's number and digest."""
    return hmac.new(key, struct.pack(">Q", number) + digest, hashlib.sha256).digest()
