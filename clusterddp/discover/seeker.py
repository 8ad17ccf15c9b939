"""Ranks 1 to N-1: listen, answer, leave once rank 0 has heard from all. Time and randomness are arguments.

A rank leaves when a ``complete`` announcement contains its own nonce: nobody could have recorded that one earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.discover.message import Message
from clusterddp.discover.outcome import START_IT, START_THEM, Failed, Met, ranks, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

FAREWELL_COPIES = 3  # of ``done`` and ``bye``, since nothing repeats a lost one
# seconds over which the answers to one announcement spread: for each rank, and at most
SPREAD_PER_RANK, MAX_SPREAD = 0.0002, 0.25
MAX_ANNOUNCERS = 16  # senders of announcements remembered; more can only be forged, or recorded
MAX_ANSWERS = 64  # answers planned at once


class Seeker:
    """One rank other than 0 of one discovery.

    ``nonce`` is drawn for this process; ``now`` is in seconds of any monotonic clock. ``random_number`` returns another
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
        random_number: Callable[[], float],
    ) -> None:
        self.nonce, self.rank, self.world_size, self.address = nonce, rank, world_size, address
        self.outcome: Met | Failed | None = None  # how it ended; None while it has not
        self.notices: list[str] = []  # lines for the user; the caller removes them
        self._timeout, self._deadline = timeout, now + timeout
        self._random = random_number
        self._announcements: dict[str, Message] = {}  # the last announcement of each rank 0, the newest last
        # nonce → when to answer which turn; "" asks whether anybody is there
        self._answers: dict[str, tuple[float, int]] = {"": (now, 0)}

    @property
    def due(self) -> float:
        """Return when ``tick`` must be called next."""
        return min([self._deadline, *(due for due, _ in self._answers.values())])

    def tick(self, now: float) -> list[Message]:
        """Return the messages to send now."""
        if self.outcome:
            return []
        if now >= self._deadline:
            self.outcome = self._timeout_outcome()
            return self.leave()
        ready = [(nonce, turn) for nonce, (due, turn) in self._answers.items() if due <= now]
        for nonce, _ in ready:
            del self._answers[nonce]
        return [self._message("answer", nonce, turn) for nonce, turn in ready]

    def receive(self, message: Message, now: float) -> list[Message]:
        """Return the messages to send at once in answer to one from the segment."""
        if self.outcome or message.sender == self.nonce:
            return []
        if message.kind == "refuse" and message.to == self.nonce:
            self.outcome = self._refused_outcome(message)
        elif message.kind == "announce":
            return self._receive_announcement(message, now)
        return []

    def leave(self) -> list[Message]:
        """Return the last messages of a rank that gives up."""
        heard = self._announcements.values()
        return [self._message("bye", message.sender, message.turn) for message in heard] * FAREWELL_COPIES

    def _receive_announcement(self, message: Message, now: float) -> list[Message]:
        """Remember the announcement; plan an answer or, if it is complete and names this process, end with ``done``."""
        previous = self._announcements.pop(message.sender, None)
        if previous and message.turn < previous.turn:
            message = previous  # an older announcement that arrived late
        self._announcements[message.sender] = message
        if len(self._announcements) > MAX_ANNOUNCERS:
            del self._announcements[next(iter(self._announcements))]  # its answer stays: it may be the live one's
        if message.complete and (self.rank, self.nonce) in message.heard:
            self.outcome = Met(address=message.address, port=message.port)
            return [self._message("done", message.sender, message.turn)] * FAREWELL_COPIES
        if not message.complete and (message.sender in self._answers or len(self._answers) < MAX_ANSWERS):
            spread = min(MAX_SPREAD, SPREAD_PER_RANK * self.world_size)
            due, turn = self._answers.get(message.sender, (now + spread * self._random(), 0))
            self._answers[message.sender] = due, max(turn, message.turn)
        return []

    def _message(self, kind: str, to: str, turn: int) -> Message:
        """Return a message to the process with nonce ``to``, which echoes a turn of it."""
        return Message(
            kind=kind,
            sender=self.nonce,
            to=to,
            rank=self.rank,
            world_size=self.world_size,
            address=self.address,
            turn=turn,
        )

    def _refused_outcome(self, message: Message) -> Failed:
        if message.world_size != self.world_size:
            return Failed(
                message=f"rank 0 is told a world size of {message.world_size}, this one {self.world_size}",
                remedy="give the same --world-size everywhere",
            )
        return Failed(
            message=f"rank {self.rank} is taken by {message.address or 'another machine'}",
            remedy="give each machine its own --rank",
        )

    def _timeout_outcome(self) -> Failed:
        time = seconds(self._timeout)
        if not self._announcements:
            return Failed(message=f"rank 0 was not heard within {time}", remedy=START_IT)
        last = next(reversed(self._announcements.values()))
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
