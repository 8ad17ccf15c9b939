"""Rank 0's part: announce until all have answered, then say so until all have seen that. The time is an argument.

An answer echoes this process's nonce, so whoever answered knows the address: rank 0 has all when it has heard from all.
The others may leave only when they know that, which a ``complete`` announcement with their own nonce tells them. It is
repeated until each has sent ``done``. A last message can always be lost, so rank 0 ends at the latest after
``CLOSING_TIMEOUT``: thirty repeats, of which one has to arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterddp.discover.message import MAX_HEARD, MAX_MISSING, Message
from clusterddp.discover.outcome import START_THEM, Failed, Met, ranks, seconds

# Times in seconds.
FIRST_INTERVAL, LAST_INTERVAL, INTERVAL_GROWTH = 0.05, 1.0, 1.5  # between announcements: first, last, growth factor
MIN_INTERVAL = 0.02  # the least time between announcements, however many newcomers ask
CLOSING_INTERVAL = 0.1  # between ``complete`` announcements, and between messages to another rank 0
CLOSING_TIMEOUT = 3.0  # how long ``complete`` announcements go on
RIVAL_TIMEOUT = 1.0  # how long messages to another rank 0 go on
SILENCE_TIMEOUT = 15.0  # a rank that has sent nothing for this long is missing again
TAKEOVER_TIME = 4.0  # a silent rank is replaced by a new process once that has answered for so long
MAX_REFUSALS = 64  # refusals shown to the user: without a key, one sender may have any number of nonces
OVERLAP_TIME = 0.5  # if messages of both processes of one rank came for so long, there really are two


@dataclass(kw_only=True, slots=True)
class _Peer:
    """The last answer of another rank."""

    nonce: str
    address: str
    heard_at: float  # when its last answer came
    turn: int  # the announcement it answered


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
        self._interval, self._last = FIRST_INTERVAL, now - MIN_INTERVAL
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
        """Return the messages to send now."""
        if not self.outcome and now >= self._deadline:
            self._end_at_deadline(now)
        if self.outcome or now < self.due:
            return []
        self._last = now
        self.due = min(now + self._interval, self._deadline)
        if self._rival:
            return [self._to_rival(self._rival)]
        if self._complete:
            return self._complete_announcements()
        self._interval = min(LAST_INTERVAL, self._interval * INTERVAL_GROWTH)
        return [self._announcement(now)]

    def receive(self, message: Message, now: float) -> list[Message]:
        """Return the messages to send at once in answer to one from the segment."""
        if self.outcome or message.sender == self.nonce:
            return []
        if message.kind in {"announce", "rival"}:
            return self._receive_rival(message, now)
        if message.kind == "answer" and not message.to:
            self.due = min(self.due, max(now, self._last + MIN_INTERVAL))  # a newcomer asks, and should not wait
        if message.to != self.nonce or not message.rank:
            return []
        if message.kind == "answer":
            return self._receive_answer(message, now)
        peer = self._peers.get(message.rank)
        if peer and peer.nonce == message.sender:
            if message.kind == "bye" and not self._complete:
                # It counts as missing; its turn is kept, so that no recorded answer brings it back.
                peer.heard_at = self._start - SILENCE_TIMEOUT
            elif message.kind == "done" and self._complete:
                self._receive_done(message.rank)
        return []

    def leave(self) -> list[Message]:
        """Return the last messages when interrupted: none, so the others wait for another rank 0."""
        return []

    def missing(self, now: float) -> list[int]:
        """Return the ranks not heard from, or not recently."""
        recent = {rank for rank, peer in self._peers.items() if now - peer.heard_at < SILENCE_TIMEOUT}
        return [rank for rank in range(1, self.world_size) if rank not in recent]

    def _receive_answer(self, message: Message, now: float) -> list[Message]:
        """Remember who answered, or refuse it; once all have, begin the ``complete`` announcements."""
        if self._complete or self._rival:
            return []
        if message.world_size != self.world_size:
            return [self._refusal(message, f"is told a world size of {message.world_size}, not {self.world_size}")]
        peer = self._peers.get(message.rank)
        # A recorded answer of an earlier process of this rank echoes an older turn than that of its successor.
        if peer and message.turn <= peer.turn - (peer.nonce != message.sender):
            return []  # a duplicate, or a recording
        if peer and peer.nonce != message.sender and now - peer.heard_at < SILENCE_TIMEOUT:
            since = self._challenged_since(message, now)
            if peer.heard_at > since + OVERLAP_TIME:
                return [self._refusal(message, f"is refused: {peer.address} has that rank", holder=peer.address)]
            if peer.heard_at > since or now - since < TAKEOVER_TIME:
                return []  # the first process may have ended, or only be slow
        self._peers[message.rank] = _Peer(
            nonce=message.sender, address=message.address, heard_at=now, turn=message.turn
        )
        if not self.missing(now):
            self._complete, self.due = True, now
            self._interval, self._deadline = CLOSING_INTERVAL, now + CLOSING_TIMEOUT
        return []

    def _challenged_since(self, message: Message, now: float) -> float:
        """Return since when this second process of a rank has been heard."""
        nonce, since = self._challengers.get(message.rank, ("", now))
        if nonce != message.sender:
            since = now
            self._challengers[message.rank] = message.sender, now
        return since

    def _refusal(self, message: Message, reason: str, *, holder: str = "") -> Message:
        """Return a refusal, and show it once; ``holder`` is the address of the machine that has the rank."""
        if message.sender not in self._refused and len(self._refused) < MAX_REFUSALS:
            self._refused.add(message.sender)
            self.notices.append(f"rank {message.rank} at {message.address or 'an unknown address'} {reason}")
        return self._message("refuse", to=message.sender, address=holder)

    def _receive_rival(self, message: Message, now: float) -> list[Message]:
        """Ask another rank 0 to prove that it is live; once it has, end without success."""
        if self._complete:
            return []  # a new job's rank 0; this one is about to end
        if message.kind == "announce":
            # It may be a recording: only an answer to our own nonce proves that another rank 0 is there now.
            return [] if message.complete else [self._to_rival(message)]
        if message.to == self.nonce and not self._rival:
            self._rival, self._interval, self.due, self._deadline = message, CLOSING_INTERVAL, now, now + RIVAL_TIMEOUT
        return []

    def _receive_done(self, rank: int) -> None:
        self._finished.add(rank)
        if len(self._finished) == self.world_size - 1:
            self.outcome = Met(address=self.address, port=self.port)

    def _end_at_deadline(self, now: float) -> None:
        """Set the outcome at the deadline: of waiting for answers, of the last announcements, or of a rival rank 0."""
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
                message=f"{ranks(missing[:MAX_MISSING], len(missing))} of {self.world_size} did not answer "
                f"within {seconds(self._timeout)}",
                remedy=START_THEM,
            )

    def _announcement(self, now: float) -> Message:
        self._turn += 1
        missing = self.missing(now)
        return self._message("announce", missing=tuple(missing[:MAX_MISSING]), missing_count=len(missing))

    def _complete_announcements(self) -> list[Message]:
        """Return announcements for all that have not sent ``done``, each with a part of them."""
        self._turn += 1
        waiting = [(rank, peer.nonce) for rank, peer in sorted(self._peers.items()) if rank not in self._finished]
        parts = [waiting[start : start + MAX_HEARD] for start in range(0, len(waiting), MAX_HEARD)]
        return [self._message("announce", complete=True, heard=tuple(part)) for part in parts]

    def _to_rival(self, rival: Message) -> Message:
        return self._message("rival", to=rival.sender)

    def _message(self, kind: str, **fields: Any) -> Message:
        defaults = {"world_size": self.world_size, "address": self.address, "port": self.port, "turn": self._turn}
        return Message(kind=kind, sender=self.nonce, **{**defaults, **fields})
