"""Many hosts' streams as one: the past in order of time, then what comes as it comes.

A thread a host reads its stream into a short queue; a full queue makes that host wait, and nobody else. While
a host is in its past the others' newer lines wait for it; one that stays silent is waited for no longer. A
broken stream is opened again where it ended, so nothing is lost and nothing comes twice.

Not here: how to open a stream (the caller's), what lines look like (render.py).
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.errors import ClusterddpError, UnreachableError
from clusterddp.logs.selection import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from clusterddp.remote.shared.frames import Frame

    Open = Callable[[str, Position], Iterator[Frame]]
    Retry = Callable[[int, ClusterddpError], float | None]

QUEUE = 16  # frames of one host that wait for the merge
BATCH = 256  # frames of the past in one batch
PATIENCE = 2.0  # seconds that a silent host's past holds the others back in a follow


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrived:
    """A data frame of a host."""

    host: str
    frame: Frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A host has sent everything; ``ended`` is its exit record, None while the run goes on or where it was lost."""

    host: str
    ended: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """A host's stream broke; it is opened again in ``retry`` seconds, with None never."""

    host: str
    error: ClusterddpError
    retry: float | None


Event = Arrived | Ended | Broken


def backoff(attempt: int, error: ClusterddpError) -> float | None:
    """The default policy: a lost connection is tried again, every 10 s at last; a failed operation never."""
    return min(10.0, 0.25 * 2.0 ** min(attempt, 10)) if isinstance(error, UnreachableError) else None


def briefly(attempt: int, error: ClusterddpError) -> float | None:
    """For a read of what is there: a lost connection is tried again three times, then its host is given up."""
    return backoff(attempt, error) if attempt <= 3 else None


class _Feed:
    """One host's queue between its thread and the merge."""

    def __init__(self, host: str, lock: threading.Lock) -> None:
        self.host = host
        self.queue: deque[Event] = deque()
        self.room = threading.Condition(lock)
        self.read = Position()  # so far its thread has read
        self.past = True  # its past is not complete
        self.done = False  # nothing more comes


class Merge:
    """The merged events of several hosts.

    Args:
        hosts: Their names.
        open_stream: Opens a host's ``tail`` at a position; called in that host's thread, again after a break.
        follow: Whether silent hosts may be overtaken; a plain read waits for all.
        retry: How long to wait after the nth break in a row; None gives the host up.
    """

    def __init__(self, hosts: Iterable[str], open_stream: Open, *, follow: bool = True, retry: Retry = backoff) -> None:
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._feeds = {host: _Feed(host, self._lock) for host in hosts}
        self._open, self._retry, self._follow = open_stream, retry, follow
        self._closed = threading.Event()
        self._bug: BaseException | None = None
        self._given: list[Event] = []
        self._moved = time.monotonic()  # when something last came out
        self.offsets: dict[str, dict[str, int]] = {host: {} for host in self._feeds}
        self.ended: dict[str, Mapping[str, Any] | None] = {}
        for feed in self._feeds.values():
            threading.Thread(target=self._read, args=(feed,), name=f"logs {feed.host}", daemon=True).start()

    def __enter__(self) -> Merge:  # noqa: PYI034 - typing.Self is Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[list[Event]]:
        while events := self.batch():
            yield events

    @property
    def done(self) -> bool:
        """Whether every host has ended or was given up, and all of it was handed out."""
        return all(feed.done and not feed.queue for feed in self._feeds.values())

    def close(self) -> None:
        """Read no more. A thread that waits for its host ends with the host's connection."""
        self._closed.set()
        with self._lock:
            for feed in self._feeds.values():
                feed.queue.clear()
                feed.done = True
                feed.room.notify()
            self._arrived.notify_all()

    def batch(self, timeout: float | None = None) -> list[Event]:
        """What can be shown now; waits for something, at most ``timeout`` seconds. Empty then, or when all is done.

        Asking for the next batch says that the last one was shown: only then ``offsets`` moves past it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._note_shown()
        with self._lock:
            events = self._collect()
            while not events and not self.done:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._wait(left)
                events = self._collect()
            if self._bug:
                raise self._bug
        self._given = events
        return events

    def _wait(self, left: float | None) -> None:
        """Wait for an arrival; when a silent host has held back the others for long enough, let them pass."""
        if not (self._follow and any(feed.past for feed in self._feeds.values())):
            self._arrived.wait(left)
            return
        patience = self._moved + PATIENCE - time.monotonic()
        if patience > 0:
            self._arrived.wait(patience if left is None else min(patience, left))
            return
        for feed in self._feeds.values():
            feed.past = feed.past and bool(feed.queue)
        self._moved = time.monotonic()

    def _collect(self) -> list[Event]:
        """All that may come out now: of the past by time, as far as every host there has shown its next frame."""
        taken: list[Event] = []
        past = [feed for feed in self._feeds.values() if feed.past]
        while past and len(taken) < BATCH and all(feed.queue for feed in past):
            feed = min(past, key=_next_time)
            taken.append(self._pop(feed))
            past = [feed for feed in past if feed.past]
        for feed in self._feeds.values() if not past else ():
            while feed.queue:
                taken.append(self._pop(feed))
        if taken:
            self._moved = time.monotonic()
        return taken

    def _pop(self, feed: _Feed) -> Event:
        event = feed.queue.popleft()
        feed.room.notify()
        if not isinstance(event, Arrived) or event.frame.header.get("caught_up"):
            feed.past = False
        if isinstance(event, Ended):
            self.ended[feed.host] = event.ended
        return event

    def _note_shown(self) -> None:
        for event in self._given:
            if isinstance(event, Arrived):
                self.offsets[event.host].update(_places(event.frame))
        self._given = []

    # A host's thread

    def _read(self, feed: _Feed) -> None:
        attempt, told = 0, False
        try:
            while not self._closed.is_set():
                before = feed.read
                error = self._read_once(feed)
                if error is None:
                    return
                came = feed.read is not before
                attempt = 0 if came else attempt + 1
                delay = self._retry(attempt, error)
                if came or not told or delay is None:  # a break is told once, not with every attempt to mend it
                    self._put(feed, Broken(host=feed.host, error=error, retry=delay), done=delay is None)
                told = True
                if delay is None or self._closed.wait(delay):
                    return
        except BaseException as bug:  # noqa: BLE001 - raised again in the thread that shows
            with self._lock:
                self._bug, feed.done = bug, True
                self._arrived.notify()

    def _read_once(self, feed: _Feed) -> ClusterddpError | None:
        """Read the stream to its end or its break."""
        try:
            for frame in self._open(feed.host, feed.read):
                if frame.header.get("kind") == "end":
                    self._put(feed, Ended(host=feed.host, ended=json.loads(frame.body)["ended"]), done=True)
                    return None
                if not self._put(feed, Arrived(host=feed.host, frame=frame)):
                    return None
                feed.read = _moved(feed.read, frame)
        except ClusterddpError as error:
            return error
        return UnreachableError(feed.host, "the stream ended in the middle")

    def _put(self, feed: _Feed, event: Event, *, done: bool = False) -> bool:
        with self._lock:
            while len(feed.queue) >= QUEUE and not self._closed.is_set():
                feed.room.wait()
            if self._closed.is_set():
                return False
            feed.queue.append(event)
            feed.done = done
            self._arrived.notify()
        return True


def _next_time(feed: _Feed) -> int:
    """The time of a host's next frame; what has none comes at once."""
    event = feed.queue[0]
    return int(event.frame.header.get("time") or 0) if isinstance(event, Arrived) else 0


def _places(frame: Frame) -> Mapping[str, int]:
    """The next offsets after a frame, of the files it speaks of."""
    header = frame.header
    places: Mapping[str, int] = header.get("offsets") or {}
    return {header["file"]: header["next"]} if "file" in header else places


def _moved(position: Position, frame: Frame) -> Position:
    """The position after a frame."""
    places = _places(frame)
    caught_up = position.caught_up or bool(frame.header.get("caught_up"))
    return Position(offsets={**position.offsets, **places}, caught_up=caught_up) if places or caught_up else position
