"""Merge many hosts' log streams: past lines in order of time, then frames as they arrive.

One thread per host reads its stream into a short queue; a full queue delays only that host. While a host still sends
past lines, newer lines of the others wait for it, but not for long if it is silent or only trickles. A broken stream is
reopened where it stopped, so nothing is lost or shown twice.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from clusterddp.errors import ClusterddpError, HelperError, UnreachableError
from clusterddp.logs.checked_frames import CaughtUp, End, Lines, WorkersExited
from clusterddp.logs.selection import Position
from clusterddp.remote.shared.wire.frames import PER_FRAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from typing_extensions import Self

    from clusterddp.logs.checked_frames import LogFrame

    Open = Callable[[str, Position], Iterator[LogFrame]]
    Retry = Callable[[int, ClusterddpError], float | None]

MAX_FILES = 1 << 15  # of one host: 16 workers, started a thousand times
QUEUE_SIZE = 16  # frames of one host queued for the merge
BATCH_SIZE = 256  # frames of the past in one batch
_number = attrgetter("number")
SILENCE_TIMEOUT = 2.0  # seconds, all pauses together, that a host's past holds the others back in a follow
PAST_RATE = 16 << 10  # bytes of the past that make up for a second of pauses: what a slow host sends, no trickle


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameArrived:
    """A frame of a host."""

    host: str
    frame: LogFrame

    @property
    def body(self) -> bytes:
        """The output that it brings, if any."""
        return self.frame.body if isinstance(self.frame, Lines) else b""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamEnded:
    """A host has sent everything; ``ended`` is its exit record, None while the run goes on or if the host was lost."""

    host: str
    ended: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamBroken:
    """A host's stream broke; it is reopened after ``retry`` seconds, or never if that is None."""

    host: str
    error: ClusterddpError
    retry: float | None

    @property
    def notice(self) -> str:
        """The message for the user."""
        if self.retry is None:
            return f"no more logs of {self.host}: {self.error}"
        return f"logs of {self.host} are interrupted: {self.error.message}; trying again"


Event = FrameArrived | StreamEnded | StreamBroken


def backoff(attempt: int, error: ClusterddpError) -> float | None:
    """Return the seconds before a stream is reopened: exponential up to 10 s for a lost connection; else None."""
    return min(10.0, 0.25 * 2.0 ** min(attempt, 10)) if isinstance(error, UnreachableError) else None


def brief_backoff(attempt: int, error: ClusterddpError) -> float | None:
    """Return the same as ``backoff``, but at most three times: for reading without following."""
    return backoff(attempt, error) if attempt <= 3 else None


class _HostQueue:
    """The events of one host, between its reading thread and the merge."""

    def __init__(self, host: str, number: int, lock: threading.Lock) -> None:
        self.host, self.number = host, number
        self.events: deque[Event] = deque()
        self.not_full = threading.Condition(lock)
        self.offsets: dict[str, int] = {}  # the offsets up to which its thread has read, by file
        self.caught_up = False  # the thread has read past lines to their end
        self.waited = 0.0  # seconds that the merge has waited for past lines of it, less what its frames made up for
        self.done = False  # nothing more will arrive
        self.reopen = threading.Event()  # set once its stream, if it is broken, must not wait for its next try
        self.reopen_failed = False  # a try that began after that has failed


class Merge:
    """Merges the events of several hosts.

    ``open_stream`` opens a host's ``tail`` at a position; it is called in that host's thread, again after each break.
    ``follow``: others may overtake a silent host. ``retry`` returns the seconds to wait after the nth break in a row;
    None gives the host up. ``past``: streams begin with past lines, to be sorted by time.
    """

    def __init__(
        self, hosts: Iterable[str], open_stream: Open, *, follow: bool = True, retry: Retry = backoff, past: bool = True
    ) -> None:
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._queues = {host: _HostQueue(host, number, self._lock) for number, host in enumerate(dict.fromkeys(hosts))}
        self._open_queues = dict(self._queues)  # those of hosts that have neither ended nor been given up
        self._filled: set[_HostQueue] = set()  # those with events
        self._in_past = set(self._queues.values()) if past else set()  # those whose past lines have not all been taken
        self._heads: list[tuple[int, int, _HostQueue]] = []  # a heap of the past's filled queues, by their next time
        self._open, self._retry, self._follow = open_stream, retry, follow
        self._closed = threading.Event()
        self._bug: BaseException | None = None  # an unexpected error of a reading thread
        self._returned: list[Event] = []  # the last batch
        # Set when a host, or workers of one, have ended (so the run may have ended), and when this is closed.
        self.something_ended = threading.Event()
        # by host and file, the offset after what was shown
        self.offsets: dict[str, dict[str, int]] = {host: {} for host in self._queues}
        self.ended: dict[str, Mapping[str, Any] | None] = {}  # as in StreamEnded, by host
        self.broken: set[str] = set()  # hosts whose streams are being reopened
        # host whose stream broke for good → when (epoch); None: before anything came from it
        self.failed: dict[str, float | None] = {}
        for queue in self._queues.values():
            self._start_reading(queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[list[Event]]:
        while events := self.batch():
            yield events

    @property
    def done(self) -> bool:
        """Whether every host has ended or was given up, and all its events were returned."""
        return not self._open_queues and not self._filled

    def add(self, host: str) -> None:
        """Read another host too: one that has joined the run. Its past lines come as they arrive."""
        with self._lock:
            queue = self._queues[host] = self._open_queues[host] = _HostQueue(host, len(self._queues), self._lock)
            self.offsets[host] = {}
        self._start_reading(queue)

    def give_up(self, host: str) -> bool:
        """Stop waiting for a host, but keep what it has sent; return whether it was still being waited for."""
        with self._lock:
            queue = self._queues[host]
            was_waited_for = not queue.done
            self._finish(queue)
            self._leave_past([queue])
            self._arrived.notify_all()
        return was_waited_for

    def reopen(self, host: str) -> bool:
        """Have a host's stream, if it is broken, reopened at once for one time; return whether that may still succeed.

        True until a try has failed that began after the first call.
        """
        self._queues[host].reopen.set()
        return not self._queues[host].reopen_failed

    @property
    def waited_for(self) -> list[str]:
        """The hosts that have neither ended nor been given up."""
        return list(self._open_queues)

    def close(self) -> None:
        """Stop reading. A thread blocked on its host ends with the host's connection."""
        self._closed.set()
        self.something_ended.set()
        with self._lock:
            for queue in self._queues.values():
                queue.events.clear()
                self._finish(queue)
                queue.not_full.notify()
                queue.reopen.set()
            self._filled.clear()
            self._leave_past(list(self._in_past))
            self._arrived.notify_all()

    def batch(self, timeout: float | None = None) -> list[Event]:
        """Return the events that can be shown now, waiting at most ``timeout`` seconds for one.

        The result is empty after that time, or when everything is done. Calling this again confirms that the last batch
        was shown, as ``confirm`` does: only then does ``offsets`` move past it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self.confirm()
        with self._lock:
            events = self._collect()
            while not events and not self.done:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    break
                self._wait(remaining)
                events = self._collect()
            if self._bug:
                raise self._bug
        self._returned = events
        return events

    def confirm(self) -> None:
        """Move ``offsets`` past the last batch, which was shown; a second call for it has no effect."""
        for event in self._returned:
            if isinstance(event, FrameArrived):
                self.offsets[event.host].update(_offsets_after(event.frame))
        self._returned = []

    def _wait(self, remaining: float | None) -> None:
        """Wait for an arrival; if a host has held back the others for long enough, let them pass."""
        silent = [queue for queue in self._in_past if not queue.events] if self._follow else []
        limits = [max(0.0, SILENCE_TIMEOUT - queue.waited) for queue in silent]
        limits += [] if remaining is None else [remaining]
        begun = time.monotonic()
        self._arrived.wait(min(limits, default=None))
        for queue in silent:
            queue.waited += time.monotonic() - begun
        self._leave_past([queue for queue in silent if queue.waited >= SILENCE_TIMEOUT])

    def _collect(self) -> list[Event]:
        """Take the events that are due: past frames by time, as long as every host with past lines has a next one."""
        events: list[Event] = []
        while self._in_past and len(events) < BATCH_SIZE and len(self._heads) == len(self._in_past):
            queue = heapq.heappop(self._heads)[2]
            events.append(self._pop(queue))
            if queue in self._in_past and queue.events:
                heapq.heappush(self._heads, (_next_time(queue), queue.number, queue))
        for queue in sorted(self._filled, key=_number) if not self._in_past else ():
            while queue.events:
                events.append(self._pop(queue))
        return events

    def _pop(self, queue: _HostQueue) -> Event:
        """Take a host's next event, and update what it changes in the merge."""
        event = queue.events.popleft()
        if not queue.events:
            self._filled.discard(queue)
        queue.not_full.notify()
        if not isinstance(event, FrameArrived) or _is_caught_up(event.frame):
            self._in_past.discard(queue)
        elif isinstance(event.frame, Lines):
            queue.waited = max(0.0, queue.waited - (len(event.body) + PER_FRAME) / PAST_RATE)
        if isinstance(event, StreamBroken) and event.retry is not None:
            self.broken.add(queue.host)
        else:
            self.broken.discard(queue.host)
        if isinstance(event, StreamBroken) and event.retry is None:
            self.failed[queue.host] = time.time() if queue.offsets or queue.caught_up else None
        if isinstance(event, StreamEnded):
            self.ended[queue.host] = event.ended
            self.something_ended.set()
        return event

    def _finish(self, queue: _HostQueue) -> None:
        """Note that nothing more will arrive from a host."""
        queue.done = True
        self._open_queues.pop(queue.host, None)

    def _leave_past(self, queues: Iterable[_HostQueue]) -> None:
        """Let the others' lines pass those of these hosts."""
        self._in_past.difference_update(queues)
        self._heads = [head for head in self._heads if head[2] in self._in_past]
        heapq.heapify(self._heads)

    def _start_reading(self, queue: _HostQueue) -> None:
        threading.Thread(target=self._read, args=(queue,), name=f"logs {queue.host}", daemon=True).start()

    # The methods below run in a host's thread.

    def _read(self, queue: _HostQueue) -> None:
        """Read a host's stream to its end, and reopen it after each break."""
        attempt, reported = 0, False
        try:
            while not self._closed.is_set():
                was_hurried = queue.reopen.is_set()
                error, has_output = self._read_once(queue)
                if error is None:
                    return
                queue.reopen_failed = was_hurried
                attempt = 0 if has_output else attempt + 1
                delay = self._retry(attempt, error)
                if has_output or not reported or delay is None:  # report a break once, not at every retry
                    self._put(queue, StreamBroken(host=queue.host, error=error, retry=delay), done=delay is None)
                reported = True
                if delay is None:
                    return
                (self._closed if was_hurried else queue.reopen).wait(delay)
        except BaseException as bug:  # noqa: BLE001 - raised again in the thread that shows
            with self._lock:
                self._bug = bug
                self._finish(queue)
                self._arrived.notify()

    def _read_once(self, queue: _HostQueue) -> tuple[ClusterddpError | None, bool]:
        """Read the stream until it ends or breaks; return the error, and whether any of the run's output arrived."""
        has_output = False
        try:
            for frame in self._open(queue.host, Position(offsets=dict(queue.offsets), caught_up=queue.caught_up)):
                if isinstance(frame, End):
                    self._put(queue, StreamEnded(host=queue.host, ended=frame.ended), done=True)
                    return None, has_output
                if isinstance(frame, WorkersExited):  # not a line: only a hint that workers exited
                    self.something_ended.set()
                    continue
                offsets = _offsets_after(frame)
                if len(queue.offsets) + len(offsets) > MAX_FILES:
                    return HelperError(queue.host, f"its logs are of more than {MAX_FILES} files"), has_output
                if not self._put(queue, FrameArrived(host=queue.host, frame=frame)):
                    return None, has_output
                queue.offsets.update(offsets)
                queue.caught_up = queue.caught_up or _is_caught_up(frame)
                has_output = has_output or bool(offsets) or queue.caught_up
        except ClusterddpError as error:
            return error, has_output
        return UnreachableError(queue.host, "the stream ended in the middle"), has_output

    def _put(self, queue: _HostQueue, event: Event, *, done: bool = False) -> bool:
        """Queue an event, ``done`` if it is the host's last; return whether it is still wanted."""
        with self._lock:
            while len(queue.events) >= QUEUE_SIZE and not self._closed.is_set():
                queue.not_full.wait()
            if self._closed.is_set() or queue.done:  # done: given up
                return False
            queue.events.append(event)
            self._filled.add(queue)
            if queue in self._in_past and len(queue.events) == 1:
                heapq.heappush(self._heads, (_next_time(queue), queue.number, queue))
            if done:
                self._finish(queue)
            self._arrived.notify()
        return True


def _next_time(queue: _HostQueue) -> int:
    """Return the time of a host's next frame; frames without a time come first."""
    event = queue.events[0]
    frame = event.frame if isinstance(event, FrameArrived) else None
    return frame.part.time or 0 if isinstance(frame, Lines) else 0


def _is_caught_up(frame: LogFrame) -> bool:
    """Return whether a frame ends the past lines of a host."""
    return isinstance(frame, CaughtUp) and frame.whole


def _offsets_after(frame: LogFrame) -> Mapping[str, int]:
    """Return the offsets after a frame, for the files in it."""
    return frame.offsets if isinstance(frame, (Lines, CaughtUp)) else {}
