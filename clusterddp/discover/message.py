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
from dataclasses import asdict, dataclass
from typing import Any

from clusterddp.remote.shared.names.ip_address import is_address

KINDS = ("announce", "answer", "done", "bye", "refuse", "rival")
MOST_WORLD = 4096  # machines
MOST_ID = 64  # bytes
SHORTEST_KEY = 16  # bytes
MOST_DATAGRAM = 1400  # bytes: whole in any Ethernet frame
HEARD_AT_ONCE = 32  # entries of ``heard`` in one datagram
MISSING_AT_ONCE = 16
_MAGIC = b"cdd1"
_DIGEST, _TAG = 16, 32
_HEAD = len(_MAGIC) + 1 + _DIGEST
_NONCE = re.compile(r"[0-9a-f]{16}")
_MOST_TURN = 2**40


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message."""

    kind: str  # one of ``KINDS``
    sender: str  # the nonce of the sending process
    to: str = ""  # the nonce of the addressee; empty in announcements and questions
    rank: int = 0  # the sender's
    world_size: int = 1
    address: str = ""  # the sender's on its interface; in ``refuse`` that of the machine that has the rank
    port: int = 0  # rank 0's MASTER_PORT
    turn: int = 0  # rank 0's count of announcements, or its echo
    complete: bool = False  # rank 0 has heard from all
    # (rank, nonce) of ranks heard; only in complete ones, at most ``HEARD_AT_ONCE``
    heard: tuple[tuple[int, str], ...] = ()
    missing: tuple[int, ...] = ()  # the first ``MISSING_AT_ONCE`` ranks not heard yet
    missing_count: int = 0  # the number of all that are missing


@dataclass(frozen=True, kw_only=True, slots=True)
class Unbelieved:
    """A datagram of this id whose sender is not trusted, and why."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Codec:
    """Converts messages of one id to datagrams and back; without a ``key`` nothing is signed."""

    id: str
    key: bytes | None

    def encode(self, message: Message) -> bytes:
        """The datagram of a message."""
        plain = {name: value for name, value in asdict(message).items() if value or name in {"kind", "sender"}}
        body = json.dumps(plain, separators=(",", ":")).encode()
        head = _MAGIC + (b"\1" if self.key else b"\0") + self._digest()
        return head + (self._tag(head, body) if self.key else b"") + body

    def decode(self, datagram: bytes) -> Message | Unbelieved | None:
        """The message in a datagram; None if it has another id, or is damaged. Never raises."""
        head, rest = datagram[:_HEAD], datagram[_HEAD:]
        if len(datagram) > MOST_DATAGRAM or head[: len(_MAGIC)] != _MAGIC or head[len(_MAGIC) + 1 :] != self._digest():
            return None
        signed = head[len(_MAGIC)] == 1
        if not self.key:
            return Unbelieved(reason="it uses a key, this one has none") if signed else _message(rest)
        if not signed:
            return Unbelieved(reason="it uses no key")
        if not hmac.compare_digest(rest[:_TAG], self._tag(head, rest[_TAG:])):
            return Unbelieved(reason="it uses another key")
        return _message(rest[_TAG:])

    def _digest(self) -> bytes:
        return hashlib.sha256(self.id.encode()).digest()[:_DIGEST]

    def _tag(self, head: bytes, body: bytes) -> bytes:
        return hmac.new(self.key or b"", head + body, hashlib.sha256).digest()


def _message(body: bytes) -> Message | None:
    """The message in a body, every field checked; None if any is wrong."""
    try:
        found = json.loads(body)
        return _checked(found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # anybody may send anything
        return None


def _checked(found: dict[str, Any]) -> Message:
    if found["kind"] not in KINDS or found.keys() - Message.__slots__:
        raise ValueError
    rank, world_size = _number(found.get("rank", 0), MOST_WORLD - 1), _number(found.get("world_size", 1), MOST_WORLD)
    if rank >= world_size:
        raise ValueError(rank)
    heard = _list(found.get("heard", []), HEARD_AT_ONCE)
    missing = _list(found.get("missing", []), MISSING_AT_ONCE)
    return Message(
        kind=found["kind"],
        sender=_nonce(found["sender"]),
        to=_nonce(found["to"]) if "to" in found else "",
        rank=rank,
        world_size=world_size,
        address=_address(found["address"]) if "address" in found else "",
        port=_number(found.get("port", 0), 65535),
        turn=_number(found.get("turn", 0), _MOST_TURN),
        complete=found.get("complete", False) is True,
        heard=tuple((_number(rank, MOST_WORLD - 1), _nonce(nonce)) for rank, nonce in heard),
        missing=tuple(_number(rank, MOST_WORLD - 1) for rank in missing),
        missing_count=_number(found.get("missing_count", 0), MOST_WORLD),
    )


def _nonce(value: str) -> str:
    if not _NONCE.fullmatch(value):
        raise ValueError(value)
    return value


def _address(value: str) -> str:
    if not is_address(value):
        raise ValueError(value)
    return value


def _number(value: int, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(value)
    return value


def _list(value: list[Any], most: int) -> list[Any]:
    if type(value) is not list or len(value) > most:
        raise ValueError(value)
    return value
