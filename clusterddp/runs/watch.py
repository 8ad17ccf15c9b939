"""Watch a followed run in the background: report restarts with the reason, stalls, and silence of all ranks."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError
from clusterddp.logs.checked_frames import Lines, LogHeader, RunStalled, WorkersStarted
from clusterddp.logs.merge import FrameArrived, StreamBroken
from clusterddp.remote.shared.run.event_schema import of_kind
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.runs.ending import SILENCE_LIMIT, clock_time
from clusterddp.runs.restarts import explain_round, rounds_of
from clusterddp.runs.view.notices import replication_notices, stalls_found
from clusterddp.text.units import human_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Self

    from clusterddp.logs.checked_frames import LogFrame
    from clusterddp.logs.merge import Event
    from clusterddp.runs.run_on_hosts import RunOnHosts
    from clusterddp.runs.view.run_view import RunView

_log = logging.getLogger("clusterddp")
_DEBUG_EVENTS = {  # events of a start that `-v` shows: the field shown, and the text before it
    "not_forked": ("reason", "not from the fork server"),
    "preloaded": ("packages", "preloaded"),
}
GATHER_LIMIT = 15.0  # seconds for all workers of a round to start, before it is reported incomplete
POLL_INTERVAL = 0.3  # seconds between two polls of an incomplete round
FINAL_TIMEOUT = 5.0  # seconds for the last reports when the run has ended


class RunWatch:
    """Reports events of one run while the context lasts.

    ``tell`` receives an event name (``restarted``, ``carried``, ``stalled``, ``silent``) and a line, in the watch's own
    thread.
    ``silence`` is the seconds without output of any rank after which that is reported, once; 0: never.
    """

    def __init__(self, run: RunOnHosts, tell: Callable[[str, str], None], *, silence: float) -> None:
        self.run, self.tell, self.silence = run, tell, silence
        self._began_ns = time.time_ns()
        self._starts: dict[str, int] = {}  # host → number of the newest known start of its workers
        self._attempt = run.attempt
        self._carried: set[str] = set()  # lines already shown about replicated paths
        self._reported: dict[int, int] = {}  # attempt → the newest round already reported
        self._last_output = time.monotonic()  # when a worker last printed something
        self._silent = False  # the silence has been reported
        self._stalls: set[tuple[int, int, str]] = set()  # (attempt, start, line) already shown about stalls
        self._broken: set[str] = set()  # hosts that may not answer
        self._stalled = self._restarted = self._exited = self._closed = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._exited = True
        self._wake.set()
        if kind is None:
            self._thread.join(FINAL_TIMEOUT)
        self._closed = True

    def note_events(self, events: Iterable[Event]) -> None:
        """Take note of events from the hosts' streams."""
        for event in events:
            if not isinstance(event, FrameArrived):
                self._broken |= {event.host} if isinstance(event, StreamBroken) else set()
                continue
            self._broken.discard(event.host)
            frame = event.frame
            if isinstance(frame, LogHeader) and frame.attempt != self._attempt:
                self._attempt = frame.attempt
                self._starts.clear()
            if isinstance(frame, RunStalled):
                self._stalled = True
                self._wake.set()
            start = _start_number(frame)
            if start > self._starts.get(event.host, 0):
                self._starts[event.host] = start
                self._restarted = True
                self._wake.set()
            if isinstance(frame, Lines) and frame.body and frame.part.local_rank is not None:
                self._last_output = time.monotonic()
                if self._silent:
                    self._silent = False
                    self._wake.set()

    def _watch(self) -> None:
        """Report silence when it is due, and rounds when workers have restarted; the body of the thread."""
        if _log.isEnabledFor(logging.DEBUG):
            self._log_start_events()
        while not self._exited:
            left = None if self._silent or not self.silence else self._last_output + self.silence - time.monotonic()
            if left is not None and left <= 0:
                self._report_silence()
            elif not (self._stalled or self._restarted):  # what came while a round was gathered is reported now
                self._wake.wait(left)
            self._wake.clear()
            if self._stalled:
                self._stalled = False
                self._report_stalls()
            if self._restarted:
                self._restarted = False
                self._report_rounds()

    def _report_rounds(self) -> None:
        """Report each new round once, as soon as it is complete or ``GATHER_LIMIT`` has passed."""
        deadline = time.monotonic() + GATHER_LIMIT
        while True:
            late = self._exited or time.monotonic() > deadline
            view = self._query_view()
            rounds = rounds_of(view.nodes) if view else {}
            newest = max(rounds, default=0)
            if view and (late or (rounds and rounds[newest].complete)):
                for line in replication_notices(view.nodes):
                    if line not in self._carried:
                        self._carried.add(line)
                        self._tell("carried", line)
                reported = self._reported.setdefault(view.attempt, 0)
                for number in [number for number in rounds if number > reported]:
                    self._reported[view.attempt] = number
                    if rounds[number].began_ns > self._began_ns:
                        for line in explain_round(view.nodes, number):
                            self._tell("restarted", line)
            if late or (newest and rounds[newest].complete):
                return
            self._wake.wait(POLL_INTERVAL)
            if not self._exited:
                self._wake.clear()

    def _report_stalls(self) -> None:
        """Report each stall once that the hosts have found since this began to watch; each host records all of them."""
        view = self._query_view()
        for start, line in stalls_found(view.nodes, self._began_ns) if view else ():
            if view and (view.attempt, start, line) not in self._stalls:
                self._stalls.add((view.attempt, start, line))
                self._tell("stalled", line)

    def _log_start_events(self) -> None:
        """Once the workers run, log the ``_DEBUG_EVENTS``: what was preloaded, or why the fork server was not used."""
        deadline = time.monotonic() + GATHER_LIMIT
        while True:
            view = self._query_view()
            rounds = rounds_of(view.nodes) if view else {}
            if self._exited or time.monotonic() > deadline or any(start.complete for start in rounds.values()):
                break
            self._wake.wait(POLL_INTERVAL)
        for node in view.nodes if view else ():
            for kind, (field, label) in _DEBUG_EVENTS.items():
                for text in dict.fromkeys(getattr(event, field) for event in of_kind(node.events, kind)):
                    _log.debug("%s: %s: %s", node.host, label, text)

    def _report_silence(self) -> None:
        """Report that no rank prints. The hosts are asked, because the lines shown here may be a part of all output."""
        view = self._query_view()
        since = _last_output_time(view) if view and view.state() == RunState.RUNNING else None
        quiet = 0.0 if since is None else time.time() - since
        self._last_output = time.monotonic() - quiet
        if since is None or quiet < self.silence or self._exited:
            return
        self._silent = True
        clock = clock_time(since)
        shows = f"`clusterddp why {self.run.id}` says what they wait for"
        self._tell("silent", f"no rank has printed for {human_duration(quiet)}, since {clock}; {shows}")

    def _tell(self, event: str, line: str) -> None:
        if not self._closed:  # closed while a host kept us waiting: the verdict must be the last line
            self.tell(event, line)

    def _query_view(self) -> RunView | None:
        try:
            return self.run.view(quiet=True, patience=SILENCE_LIMIT, without=self._broken)
        except ClusterddpError:  # the code that follows the run reports it
            return None


def _last_output_time(view: RunView) -> float | None:
    """Return when a rank last printed, or else when the workers started (seconds since the epoch), or None."""
    starts = rounds_of(view.nodes)
    time_ns = max([started.began_ns for started in starts.values()] + [view.last_output_ns or 0], default=0)
    return time_ns / 1e9 if time_ns else None


def _start_number(frame: LogFrame) -> int:
    """Return the number of the workers' start that a frame belongs to; 0 if it belongs to none."""
    if isinstance(frame, WorkersStarted):
        return frame.start
    return frame.part.start or 0 if isinstance(frame, Lines) else 0
