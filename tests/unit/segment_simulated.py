"""A network segment in virtual time that loses, doubles, delays and reorders datagrams, and the ranks on it."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.discover.announcer import Announcer
from clusterddp.discover.message import Codec, Message
from clusterddp.discover.seeker import Seeker

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

ADDRESS, PORT = "10.0.0.1", 29455


@dataclass(frozen=True, kw_only=True, slots=True)
class Weather:
    """How bad a network is: chances, and the longest delay in seconds."""

    loss: float = 0.0
    doubled: float = 0.0
    delay: float = 0.001


class Simulation:
    """Ranks of one id on one segment.

    Attributes:
        now: The time.
        recorded: Every datagram ever sent.
        codec: What they encode with.
    """

    def __init__(self, random: Random, weather: Weather, *, key: bytes | None = None) -> None:
        self.now, self.recorded, self.codec = 0.0, list[bytes](), Codec(id="job7", key=key)
        self._random, self._weather = random, weather
        self._parts: list[Announcer | Seeker] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def nonce(self) -> str:
        return f"{self._random.getrandbits(64):016x}"

    def announcer(self, world_size: int, *, timeout: float = 120, address: str = ADDRESS) -> Announcer:
        """Rank 0 starts now."""
        part = Announcer(
            nonce=self.nonce(), world_size=world_size, address=address, port=PORT, now=self.now, timeout=timeout
        )
        self._parts.append(part)
        return part

    def seeker(self, rank: int, world_size: int, *, timeout: float = 120) -> Seeker:
        """Another rank starts now."""
        part = Seeker(
            nonce=self.nonce(),
            rank=rank,
            world_size=world_size,
            address=f"10.0.1.{rank}",
            now=self.now,
            timeout=timeout,
            random_number=self._random.random,
        )
        self._parts.append(part)
        return part

    def kill(self, part: Announcer | Seeker) -> None:
        """It is gone without a word."""
        self._parts.remove(part)

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Do something then."""
        heapq.heappush(self._events, (time, next(self._numbers), lambda: (action(), None)[1]))

    def send(self, datagram: bytes) -> None:
        """To all on the segment, as the weather allows."""
        self.recorded.append(datagram)
        for part in self._parts:
            copies = 2 if self._random.random() < self._weather.doubled else 1
            for _ in range(copies):
                if self._random.random() >= self._weather.loss:
                    self.at(self.now + self._random.uniform(0, self._weather.delay), self._arrival(part, datagram))

    def _arrival(self, part: Announcer | Seeker, datagram: bytes) -> Callable[[], None]:
        return lambda: self._receive(part, datagram)

    def _receive(self, part: Announcer | Seeker, datagram: bytes) -> None:
        message = self.codec.decode(datagram)
        if part in self._parts and isinstance(message, Message):
            self._say(part.receive(message, self.now))

    def _say(self, messages: list[Message]) -> None:
        for message in messages:
            self.send(self.codec.encode(message))

    def run(self, until: float = 1000.0) -> None:
        """Until all have ended, or until then."""
        while self.now < until and (self._events or any(not part.outcome for part in self._parts)):
            dues = [part.due for part in self._parts if not part.outcome]
            self.now = max(self.now, min([until, *dues, *(event[0] for event in self._events[:1])]))
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            for part in list(self._parts):
                self._say(part.tick(self.now))
