"""The part of ranks 1 to N-1: listen, answer, leave once rank 0 has heard from all. Time and chance are arguments.

A rank leaves when a ``complete`` announcement contains its own nonce: nobody could have recorded that one earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.discover.message import Message
from clusterddp.discover.outcome import START_IT, START_THEM, Failed, Met, ranks, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

LAST_WORDS = 3  # how often ``done`` and ``bye`` are sent, as nothing repeats a lost one
SPREAD, MOST_SPREAD = 0.0002, 0.25  # seconds a machine, and in all, over which the answers to one announcement spread
MOST_MASTERS = 16  # rank 0s remembered; more can only be forged


class Seeker:
    """One rank other than 0 of one discovery.

    ``nonce`` is drawn for this process; ``now`` is in seconds of any monotonic clock. ``chance`` returns another random
    number from 0 to 1 at each call.
    """

    def __init__(
        self,
        *,
        nonce: str,
        rank: int,
        world_size: int,
        address: str,
        now: float,
        timeout: float,
        chance: Callable[[], float],
    ) -> None:
        self.nonce, self.rank, self.world_size, self.address = nonce, rank, world_size, address
        self.outcome: Met | Failed | None = None  # how it ended; None while it has not
        self.notices: list[str] = []  # lines for the user; the caller removes them
        self._timeout, self._deadline = timeout, now + timeout
        self._chance = chance
        self._masters: dict[str, Message] = {}  # the last announcement of each rank 0, the newest last
        self._answers: dict[str, float] = {"": now}  # nonce → when to answer; "" asks whether anybody is there

    @property
    def due(self) -> float:
        """When ``tick`` must be called next."""
        return min([self._deadline, *self._answers.values()])

    def tick(self, now: float) -> list[Message]:
        """The messages to send now."""
        if self.outcome:
            return []
        if now >= self._deadline:
            self.outcome = self._too_late()
            return self.leave()
        ready = [nonce for nonce, at in self._answers.items() if at <= now]
        for nonce in ready:
            del self._answers[nonce]
        return [self._message("answer", nonce) for nonce in ready]

    def receive(self, message: Message, now: float) -> list[Message]:
        """The messages to send at once in answer to one from the segment."""
        if self.outcome or message.sender == self.nonce:
            return []
        if message.kind == "refuse" and message.to == self.nonce:
            self.outcome = self._refused(message)
        elif message.kind == "announce":
            return self._receive_announcement(message, now)
        return []

    def leave(self) -> list[Message]:
        """The last messages of a rank that gives up."""
        return [self._message("bye", nonce) for nonce in self._masters] * LAST_WORDS

    def _receive_announcement(self, message: Message, now: float) -> list[Message]:
        known = self._masters.pop(message.sender, None)
        if known and message.turn < known.turn:
            message = known  # an older announcement that arrived late
        self._masters[message.sender] = message
        if len(self._masters) > MOST_MASTERS:
            forgotten = next(iter(self._masters))
            del self._masters[forgotten]
            self._answers.pop(forgotten, None)
        if message.complete and (self.rank, self.nonce) in message.heard:
            self.outcome = Met(address=message.address, port=message.port)
            return [self._message("done", message.sender)] * LAST_WORDS
        if not message.complete:
            spread = min(MOST_SPREAD, SPREAD * self.world_size)
            self._answers.setdefault(message.sender, now + spread * self._chance())
        return []

    def _message(self, kind: str, to: str) -> Message:
        turn = self._masters[to].turn if to in self._masters else 0
        return Message(
            kind=kind,
            sender=self.nonce,
            to=to,
            rank=self.rank,
            world_size=self.world_size,
            address=self.address,
            turn=turn,
        )

    def _refused(self, message: Message) -> Failed:
        if message.world_size != self.world_size:
            return Failed(
                message=f"rank 0 is told a world size of {message.world_size}, this one {self.world_size}",
                remedy="give the same --world-size everywhere",
            )
        return Failed(
            message=f"rank {self.rank} is taken by {message.address or 'another machine'}",
            remedy="give each machine its own --rank",
        )

    def _too_late(self) -> Failed:
        time = seconds(self._timeout)
        if not self._masters:
            return Failed(message=f"rank 0 was not heard within {time}", remedy=START_IT)
        last = next(reversed(self._masters.values()))
        if last.complete:
            return Failed(
                message=f"rank 0 at {last.address} has met its others and left without this one",
                remedy="start all again, each machine with its own --rank",
            )
        if self.rank in last.missing:
            return Failed(
                message=f"rank 0 at {last.address} is heard but did not hear this one within {time}",
                remedy="look for a firewall on that machine or on this one",
            )
        return Failed(
            message=f"rank 0 at {last.address} was heard, but {ranks(last.missing, last.missing_count)} of "
            f"{self.world_size} did not answer it within {time}",
            remedy=START_THEM,
        )
