"""The datagrams that ranks exchange: one message each, signed if there is a key. Bytes in, values out, no I/O.

    magic 4 · signed 1 · digest of the id 16 · HMAC-SHA256 32 (only when signed) · body (JSON)

    announce  rank 0: where it is, who is missing; once ``complete`` also whom it has heard
    answer    to an announcement; with no ``to`` it is a newcomer's question whether anybody is there
    done      a rank has seen itself in a complete announcement, and leaves
    bye       a rank gives up
    refuse    rank 0 to one that cannot take part: another world size, a rank that another machine has
    rival     to another rank 0 with the same id

A nonce identifies each process; ``to`` is the nonce of the addressee. Messages that decide anything carry a nonce that
their receiver has drawn itself, so a recorded datagram decides nothing. ``turn`` counts announcements; an answer echoes
it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from clusterddp.remote.shared.names.ip_address import is_address
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.schema.record import Reader, checked, field, one_of, readers_of, record, record_in
from clusterddp.remote.shared.wire.frames import parse_json

Read = TypeVar("Read")

KINDS = ("announce", "answer", "done", "bye", "refuse", "rival")
MAX_WORLD_SIZE = 4096  # machines
MAX_ID_BYTES = 64
MIN_KEY_BYTES = 16
MAX_DATAGRAM_BYTES = 1400  # whole in any Ethernet frame
MAX_HEARD = 32  # entries of ``heard`` in one datagram
MAX_MISSING = 16  # entries of ``missing``
_MAGIC = b"cdd1"
_DIGEST, _TAG = 16, 32  # bytes
_HEAD = len(_MAGIC) + 1 + _DIGEST
_NONCE = re.compile(r"[0-9a-f]{16}")
_MAX_TURN = 2**40


def _number_up_to(limit: int) -> Reader[int]:
    return lambda fields, name: fields.number(name, limit)


def _list_of(read: Reader[Read], limit: int) -> Reader[tuple[Read, ...]]:
    """Return the reader of a list of at most ``limit`` items, each read by ``read``."""

    def read_list(fields: Fields, name: str) -> tuple[Read, ...]:
        items = fields.items(name, lambda item: read(item, "item"))
        if len(items) > limit:
            raise fields.wrong(name, len(items), f"a list of at most {limit}")
        return items

    return read_list


def _read_heard(fields: Fields, name: str) -> tuple[int, str]:
    """Read an entry of ``heard``: a rank and its nonce."""
    pair = Fields(dict(zip(("rank", "nonce"), fields.array(name), strict=True)))
    return _rank(pair, "rank"), _nonce(pair, "nonce")


_rank, _nonce = _number_up_to(MAX_WORLD_SIZE - 1), checked(_NONCE.fullmatch, "a nonce")


@record
class Message(NamedTuple):
    """The body of a datagram."""

    kind: str = field(one_of(*KINDS))
    sender: str = field(_nonce)  # the nonce of the sending process
    to: str = field(_nonce, default="")  # the nonce of the addressee; empty in announcements and questions
    rank: int = field(_rank, default=0)  # the sender's
    world_size: int = field(_number_up_to(MAX_WORLD_SIZE), default=1)
    # the sender's on its interface; in ``refuse`` that of the machine that has the rank
    address: str = field(checked(is_address, "an address"), default="")
    port: int = field(_number_up_to(65535), default=0)  # rank 0's MASTER_PORT
    turn: int = field(_number_up_to(_MAX_TURN), default=0)  # rank 0's count of announcements, or its echo
    complete: bool = field(Fields.flag, default=False)  # rank 0 has heard from all
    heard: tuple[tuple[int, str], ...] = field(_list_of(_read_heard, MAX_HEARD), default=())  # only in complete ones
    missing: tuple[int, ...] = field(_list_of(_rank, MAX_MISSING), default=())  # the first ranks not heard yet
    missing_count: int = field(_number_up_to(MAX_WORLD_SIZE), default=0)  # the number of all that are missing


@dataclass(frozen=True, kw_only=True, slots=True)
class UntrustedDatagram:
    """A datagram of this id that is ignored since its sender has not our key, and the reason."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Codec:
    """Converts messages of one id to datagrams and back; without a ``key`` nothing is signed."""

    id: str
    key: bytes | None

    def encode(self, message: Message) -> bytes:
        """Return the datagram of a message."""
        plain = {name: value for name, value in message._asdict().items() if value or name in {"kind", "sender"}}
        body = json.dumps(plain, separators=(",", ":")).encode()
        head = _MAGIC + (b"\1" if self.key else b"\0") + self._id_digest()
        return head + (self._signature(head, body) if self.key else b"") + body

    def decode(self, datagram: bytes) -> Message | UntrustedDatagram | None:
        """Return the message in a datagram; None if it has another id, or is damaged. Never raises."""
        head, rest = datagram[:_HEAD], datagram[_HEAD:]
        unsigned = head[: len(_MAGIC)] + head[len(_MAGIC) + 1 :]  # the head without the flag ``signed``
        if len(datagram) > MAX_DATAGRAM_BYTES or unsigned != _MAGIC + self._id_digest():
            return None
        signed = head[len(_MAGIC)] == 1
        if not self.key:
            return UntrustedDatagram(reason="it uses a key, this one has none") if signed else _decode_body(rest)
        if not signed:
            return UntrustedDatagram(reason="it uses no key")
        if not hmac.compare_digest(rest[:_TAG], self._signature(head, rest[_TAG:])):
            return UntrustedDatagram(reason="it uses another key")
        return _decode_body(rest[_TAG:])

    def _id_digest(self) -> bytes:
        return hashlib.sha256(self.id.encode()).digest()[:_DIGEST]

    def _signature(self, head: bytes, body: bytes) -> bytes:
        return hmac.new(self.key or b"", head + body, hashlib.sha256).digest()


def _decode_body(body: bytes) -> Message | None:
    """Return the message in a body, every field checked; None if any is wrong."""
    try:
        return _read_message(Fields(parse_json(body), most=MAX_DATAGRAM_BYTES))
    except ValueError:  # anybody may send anything
        return None


def _read_message(fields: Fields) -> Message:
    """Read a message; raises ValueError if a field is wrong or unknown."""
    message = record_in(fields, Message)
    if fields.rest(readers_of(Message)) or message.rank >= message.world_size:
        raise ValueError(message)
    return message
