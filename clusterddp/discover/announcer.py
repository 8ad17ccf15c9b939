"""Rank 0's part: announce until all have answered, then say so until all have seen that. The time is an argument.

An answer echoes this process's nonce, so whoever answered knows the address: rank 0 has all when it has heard from all.
The others may leave only when they know that, which a ``complete`` announcement with their own nonce tells them. It is
repeated until each has sent ``done``. A last message can always be lost, so rank 0 stays no longer than ``LINGER``:
thirty repeats, of which one has to arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterddp.discover.message import HEARD_AT_ONCE, MISSING_AT_ONCE, Message
from clusterddp.discover.outcome import START_THEM, Failed, Met, ranks, seconds

# Seconds.
FIRST, LAST, GROWTH = 0.05, 1.0, 1.5  # between announcements: at first, in the end, and the factor in between
HURRY = 0.02  # the least time between announcements, however many newcomers ask
CLOSING = 0.1  # between ``complete`` announcements, and between messages to another rank 0
LINGER = 3.0  # how long ``complete`` announcements go on
QUARREL = 1.0  # how long messages to another rank 0 go on
EXPIRE = 15.0  # a rank that has sent nothing for so long is missing again
TAKEOVER = 4.0  # a silent rank is replaced by a new process once that has answered for so long
MOST_REFUSED = 64  # refusals reported to the user: without a key, anybody may ask under any number of names
OVERLAP = 0.5  # if messages of both processes of one rank came for so long, there really are two


@dataclass(kw_only=True, slots=True)
class _Peer:
    nonce: str
    address: str
    at: float
    turn: int


class Announcer:
    """Rank 0 of one discovery.

    ``address`` is where the others reach this machine, ``port`` the MASTER_PORT to announce, ``nonce`` drawn for this
    process. ``now`` is in seconds of any monotonic clock.
    """

    def __init__(self, *, nonce: str, world_size: int, address: str, port: int, now: float, timeout: float) -> None:
        self.nonce, self.world_size, self.address, self.port = nonce, world_size, address, port
        self.due = now  # when ``tick`` must be called next
        self.outcome: Met | Failed | None = None  # how it ended; None while it has not
        self.notices: list[str] = []  # lines for the user; the caller removes them
        self._start, self._timeout, self._deadline = now, timeout, now + timeout
        self._interval, self._last = FIRST, now - HURRY
        self._turn = 0
        self._peers: dict[int, _Peer] = {}
        self._challengers: dict[int, tuple[str, float]] = {}  # rank → a second process: nonce, since when
        self._refused: set[str] = set()
        self._finished: set[int] = set()
        self._complete = False
        self._rival: Message | None = None
        if world_size == 1:
            self.outcome = Met(address=address, port=port)

    def tick(self, now: float) -> list[Message]:
        """The messages to send now."""
        if not self.outcome and now >= self._deadline:
            self._end(now)
        if self.outcome or now < self.due:
            return []
        self._last = now
        self.due = min(now + self._interval, self._deadline)
        if self._rival:
            return [self._to_rival(self._rival)]
        if self._complete:
            return self._complete_announcements()
        self._interval = min(LAST, self._interval * GROWTH)
        return [self._announcement(now)]

    def receive(self, message: Message, now: float) -> list[Message]:
        """The messages to send at once in answer to one from the segment."""
        if self.outcome or message.sender == self.nonce:
            return []
        if message.kind in {"announce", "rival"}:
            return self._receive_rival(message, now)
        if message.kind == "answer" and not message.to:
            self.due = min(self.due, max(now, self._last + HURRY))  # a newcomer asks, and should not wait
        if message.to != self.nonce or not message.rank:
            return []
        if message.kind == "answer":
            return self._receive_answer(message, now)
        peer = self._peers.get(message.rank)
        if peer and peer.nonce == message.sender:
            if message.kind == "bye" and not self._complete:
                peer.at = -EXPIRE + self._start  # counts as missing; kept, so that no recorded answer brings it back
            elif message.kind == "done" and self._complete:
                self._finish(message.rank)
        return []

    def leave(self) -> list[Message]:
        """The last messages when interrupted: none, so the others wait for another rank 0."""
        return []

    def missing(self, now: float) -> list[int]:
        """The ranks not heard from, or not recently."""
        recent = {rank for rank, peer in self._peers.items() if now - peer.at < EXPIRE}
        return [rank for rank in range(1, self.world_size) if rank not in recent]

    def _receive_answer(self, message: Message, now: float) -> list[Message]:
        if self._complete or self._rival:
            return []
        if message.world_size != self.world_size:
            return [self._refusal(message, f"is told a world size of {message.world_size}, not {self.world_size}")]
        peer = self._peers.get(message.rank)
        # A recorded answer of an earlier process of this rank echoes an older turn than that of its successor.
        if peer and message.turn <= peer.turn - (peer.nonce != message.sender):
            return []  # a duplicate, or a recording
        if peer and peer.nonce != message.sender and now - peer.at < EXPIRE:
            since = self._challenged_since(message, now)
            if peer.at > since + OVERLAP:
                return [self._refusal(message, f"is refused: {peer.address} has that rank", other=peer.address)]
            if peer.at > since or now - since < TAKEOVER:
                return []  # the first process may be dead, or only slow
        self._peers[message.rank] = _Peer(nonce=message.sender, address=message.address, at=now, turn=message.turn)
        if not self.missing(now):
            self._complete, self._interval, self.due, self._deadline = True, CLOSING, now, now + LINGER
        return []

    def _challenged_since(self, message: Message, now: float) -> float:
        """Since when this second process of a rank has been heard."""
        nonce, since = self._challengers.get(message.rank, ("", now))
        if nonce != message.sender:
            since = now
            self._challengers[message.rank] = message.sender, now
        return since

    def _refusal(self, message: Message, reason: str, *, other: str = "") -> Message:
        if message.sender not in self._refused and len(self._refused) < MOST_REFUSED:
            self._refused.add(message.sender)
            self.notices.append(f"rank {message.rank} at {message.address or 'an unknown address'} {reason}")
        return self._message("refuse", to=message.sender, address=other)

    def _receive_rival(self, message: Message, now: float) -> list[Message]:
        if self._complete:
            return []  # a new job's rank 0; this one is about to end
        if message.kind == "announce":
            # It may be a recording: only an answer to our own nonce proves that another rank 0 is there now.
            return [] if message.complete else [self._to_rival(message)]
        if message.to == self.nonce and not self._rival:
            self._rival, self._interval, self.due, self._deadline = message, CLOSING, now, now + QUARREL
        return []

    def _finish(self, rank: int) -> None:
        self._finished.add(rank)
        if len(self._finished) == self.world_size - 1:
            self.outcome = Met(address=self.address, port=self.port)

    def _end(self, now: float) -> None:
        """Time is up: for the others to answer, for the last announcements, or for messages to another rank 0."""
        if self._complete:
            self.outcome = Met(address=self.address, port=self.port)
        elif self._rival:
            self.outcome = Failed(
                message=f"another rank 0 with this id is at {self._rival.address or 'another place'}",
                remedy="give each job an --id of its own, and each machine its own --rank",
            )
        else:
            missing = self.missing(now)
            self.outcome = Failed(
                message=f"{ranks(missing[:MISSING_AT_ONCE], len(missing))} of {self.world_size} did not answer "
                f"within {seconds(self._timeout)}",
                remedy=START_THEM,
            )

    def _announcement(self, now: float) -> Message:
        self._turn += 1
        missing = self.missing(now)
        return self._message("announce", missing=tuple(missing[:MISSING_AT_ONCE]), missing_count=len(missing))

    def _complete_announcements(self) -> list[Message]:
        """Announcements for all that have not sent ``done``, each with a part of them."""
        self._turn += 1
        waiting = [(rank, peer.nonce) for rank, peer in sorted(self._peers.items()) if rank not in self._finished]
        parts = [waiting[start : start + HEARD_AT_ONCE] for start in range(0, len(waiting), HEARD_AT_ONCE)]
        return [self._message("announce", complete=True, heard=tuple(part)) for part in parts]

    def _to_rival(self, rival: Message) -> Message:
        return self._message("rival", to=rival.sender)

    def _message(self, kind: str, **fields: Any) -> Message:
        own = {"world_size": self.world_size, "address": self.address, "port": self.port, "turn": self._turn}
        return Message(kind=kind, sender=self.nonce, **{**own, **fields})
