"""A network in virtual time: TCP that delays, holds back and breaks, datagrams that are lost, doubled and overtaken."""

from __future__ import annotations

import errno
import heapq
import itertools
import selectors
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

RETRANSMIT = 1.0  # seconds between two tries of a segment; run control sets that limit (connection.py)


@dataclass
class Weather:
    """How bad the network is now: chances for a packet, and its longest delay in seconds."""

    loss: float = 0.0
    doubled: float = 0.0
    delay: float = 0.005


class Clock:
    """The time, and what happens at which."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def at(self, time: float, what: Callable[[], object]) -> None:
        """Call ``what`` at a time, or now if that is over."""
        heapq.heappush(self._events, (max(time, self.now), next(self._numbers), what))

    def step(self, end: float) -> bool:
        """Let the next thing happen, unless it is after ``end``."""
        if not self._events or self._events[0][0] > end:
            return False
        self.now, _, what = heapq.heappop(self._events)
        what()
        return True


class Network:
    """All hosts' sockets, and which host cannot send to which."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self.clock, self.random, self.weather = clock, random, Weather()
        self.blocked: set[tuple[str, str]] = set()  # from, to
        self.off: set[str] = set()  # hosts without power, or suspended
        self.listeners: dict[str, Listener] = {}
        self.datagrams: dict[str, DatagramSocket] = {}
        self.sender = ""  # the host whose process runs now

    def reaches(self, source: str, target: str) -> bool:
        """Whether the simulated network delivers a packet at this moment."""
        return (source, target) not in self.blocked and source not in self.off and target not in self.off

    def delay(self) -> float:
        """How long a packet takes."""
        return self.random.uniform(0.0002, self.weather.delay)

    def lost(self) -> bool:
        """Whether a packet is lost."""
        return self.weather.loss > 0 and self.random.random() < self.weather.loss


class Waitable:
    """A socket as a selector sees it."""

    selector: Selector | None = None

    def notify(self) -> None:
        """Wake the process that waits for it."""
        if self.selector:
            self.selector.wake()

    def readable(self) -> bool:
        """Whether a read would not block."""
        raise NotImplementedError

    def setblocking(self, _: bool) -> None:  # noqa: FBT001 - as a socket's
        """Accept the call and ignore it: simulated sockets never block."""

    def setsockopt(self, *_: object) -> None:
        """No option matters here."""


class Stream(Waitable):
    """One end of a connection; ``host`` has it."""

    def __init__(self, network: Network, host: str) -> None:
        self.network, self.host = network, host
        self.peer: Stream | None = None
        self.received = bytearray()
        self.ended = self.reset = self.refused = self.closed = False
        self._out: deque[tuple[float, bytes]] = deque()
        self._last = 0.0

    def readable(self) -> bool:
        return bool(self.received) or self.ended or self.reset or self.refused

    def connect_ex(self, address: tuple[str, int]) -> int:
        """Begin to connect."""
        self._syn(address[0])
        return errno.EINPROGRESS

    def _syn(self, target: str) -> None:
        clock, network = self.network.clock, self.network
        if network.lost():
            clock.at(clock.now + RETRANSMIT, lambda: self._syn(target))
        else:
            clock.at(clock.now + network.delay(), lambda: self._arrive(target))

    def _arrive(self, target: str) -> None:
        network = self.network
        if self.closed:
            return
        if not network.reaches(self.host, target) or not network.reaches(target, self.host):
            network.clock.at(network.clock.now + RETRANSMIT, lambda: self._syn(target))
            return
        listener = network.listeners.get(target)
        if listener is None:
            self.refused = True
            self.notify()
            return
        other = Stream(network, target)
        self.peer, other.peer = other, self
        listener.waiting.append((other, (self.host, 1)))
        listener.notify()

    def send(self, data: bytes | bytearray) -> int:
        if self.reset or self.ended:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        self._transmit(bytes(data))
        return len(data)

    def _transmit(self, data: bytes) -> None:
        network = self.network
        arrival = network.clock.now + network.delay()
        while network.lost():
            arrival += network.random.uniform(0.2, RETRANSMIT)
        self._last = max(self._last, arrival)
        self._out.append((self._last, data))
        network.clock.at(self._last, self._deliver)

    def _deliver(self) -> None:
        """Deliver what is due, in order; what cannot pass now is tried again."""
        network, peer = self.network, self.peer
        while self._out and self._out[0][0] <= network.clock.now and peer:
            if not network.reaches(self.host, peer.host):
                network.clock.at(network.clock.now + network.random.uniform(0.2, RETRANSMIT), self._deliver)
                return
            _, data = self._out.popleft()
            if peer.closed:
                self.reset = True
                self.notify()
                return
            peer.received += data
            peer.ended = peer.ended or not data
            peer.notify()

    def recv(self, size: int) -> bytes:
        if self.refused:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        if self.received:
            data = bytes(self.received[:size])
            del self.received[:size]
            return data
        if self.reset:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        if self.ended:
            return b""
        raise BlockingIOError

    def abort(self) -> None:
        """The network resets both ends."""
        for end in (self, self.peer):
            if end:
                end.reset = True
                end.notify()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._transmit(b"")


class Listener(Waitable):
    """A listening socket, which fence and supervisor of a host share."""

    family = socket.AF_INET

    def __init__(self, network: Network, host: str) -> None:
        self.network, self.host = network, host
        self.waiting: deque[tuple[Stream, tuple[str, int]]] = deque()
        network.listeners[host] = self

    def readable(self) -> bool:
        return bool(self.waiting)

    def getsockname(self) -> tuple[str, int]:
        return self.host, 29400

    def accept(self) -> tuple[Stream, tuple[str, int]]:
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.popleft()

    def close(self) -> None:
        """Only the end of the last process that has it closes it (``end``)."""

    def end(self) -> None:
        """Nobody has it any more."""
        self.network.listeners.pop(self.host, None)
        while self.waiting:
            self.waiting.popleft()[0].close()


class DatagramSocket(Waitable):
    """A UDP socket on run control's port."""

    def __init__(self, network: Network, host: str) -> None:
        self.network, self.host = network, host
        self.waiting: deque[bytes] = deque(maxlen=200)

    def readable(self) -> bool:
        return bool(self.waiting)

    def bind(self, _: tuple[str, int]) -> None:
        self.network.datagrams[self.host] = self

    def sendto(self, data: bytes, address: tuple[str, int]) -> None:
        network = self.network
        for _ in range(2 if network.random.random() < network.weather.doubled else 1):
            if not network.lost():
                delay = network.delay() * (network.random.choice((1, 1, 1, 40)) if network.weather.doubled else 1)
                network.clock.at(network.clock.now + delay, lambda: self._arrive(data, address[0]))

    def _arrive(self, data: bytes, target: str) -> None:
        there = self.network.datagrams.get(target)
        if there and self.network.reaches(self.host, target):
            there.waiting.append(data)
            there.notify()

    def recv(self, _: int) -> bytes:
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.popleft()

    def close(self) -> None:
        if self.network.datagrams.get(self.host) is self:
            del self.network.datagrams[self.host]


class Key(NamedTuple):
    """A selector's key."""

    fileobj: Any
    fd: int
    events: int
    data: Any


class Selector:
    """The selector of one process, which ``wake`` wakes."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake
        self._keys: dict[Any, Key] = {}

    def register(self, fileobj: Waitable, events: int, data: Any = None) -> Key:
        fileobj.selector = self
        self._keys[fileobj] = Key(fileobj, 0, events, data)
        return self._keys[fileobj]

    def modify(self, fileobj: Waitable, events: int, data: Any = None) -> Key:
        return self.register(fileobj, events, data)

    def unregister(self, fileobj: Waitable) -> None:
        fileobj.selector = None
        del self._keys[fileobj]

    def get_key(self, fileobj: Waitable) -> Key:
        return self._keys[fileobj]

    def select(self, _: float | None = None) -> list[tuple[Key, int]]:
        ready = (selectors.EVENT_READ if key.fileobj.readable() else 0 for key in self._keys.values())
        return [
            (key, events | key.events & selectors.EVENT_WRITE)
            for key, events in zip(list(self._keys.values()), ready, strict=True)
            if events or key.events & selectors.EVENT_WRITE
        ]

    def sockets(self) -> list[Waitable]:
        """All of them, whose process ends."""
        return list(self._keys)

    def close(self) -> None:
        self._keys.clear()
