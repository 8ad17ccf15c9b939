"""Following a run: its log events as they come, then its verdict.

Not here: merging and drawing lines (logs/), who failed first (runs/verdict.py), ending the other hosts when one has
failed (the supervisors do that among themselves: remote/control/leader.py).
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import ClusterddpError, HostError, UnreachableError
from clusterddp.logs.merge import FrameArrived, Merge, backoff, brief_backoff
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterddp.logs.merge import Event
    from clusterddp.logs.selection import Selection
    from clusterddp.runs.run import Run
    from clusterddp.runs.verdict import Verdict
    from clusterddp.runs.view import RunView

LOST_AFTER = 30.0  # seconds a host is still looked for when all others have ended
LOOK = 1.0  # seconds between looks whether anything is still waited for
LATE = 5.0  # seconds in which a host that the others lost may tell its own end, if it lives
GATHER_LIMIT = 5.0  # seconds for all hosts of another attempt to begin their parts
SETTLE_LIMIT = 30.0  # seconds for the hosts' exit records after their logs have ended


class Follower:
    """One run being followed.

    Args:
        run: The run.
        selection: Which lines.
        on_events: Takes each batch of events.
        tell: Takes what befalls the run: the name of an event (``lost``, ``relaunched``) and a line.
        wait: Seconds until ``on_events`` is to be called though nothing came, with no events; None: it need not.
    """

    def __init__(
        self,
        run: Run,
        selection: Selection,
        on_events: Callable[[list[Event]], None],
        tell: Callable[[str, str], None] = lambda _event, _line: None,
        wait: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.run, self.selection, self.on_events, self.tell, self.wait = run, selection, on_events, tell, wait
        self._merge: Merge | None = None
        self._alone_since: float | None = None
        self._wanted: set[str] = set()  # hosts
        self._broken: set[str] = set()  # of them, whose streams are being opened again, or given up

    def follow(self) -> Verdict | None:
        """Until every host has ended or is lost; then the verdict, or None while the run goes on or was only read.

        When another attempt follows, on to that.
        """
        while True:
            stream, hosts = self.run.tail(self.selection), self.run.selected(self.selection)
            self._wanted, self._broken = set(hosts), set()
            self._alone_since = None
            with Merge(hosts, stream, follow=self.selection.follow, retry=self._retry) as self._merge:
                self._show(self._merge)
            if not self.selection.follow:
                return None
            view = self._wait_for_end()
            if view.attempt == self.run.attempt:
                return self.run.watched(view)
            self.selection = replace(self.selection, start={}, tail=None)
            lost = set(view.record.lost).difference(self.run.record.lost)
            self.run = self.run.at(view).begun(lambda _line: None)
            for host in sorted(lost):
                self.tell("lost", f"{host} is lost")
            if self.run.spools:  # else it ended before
                self.tell("relaunched", f"attempt {self.run.attempt} on {folded_names(self.run.record.hosts)}")

    def _show(self, merge: Merge) -> None:
        """All that comes, until all hosts have ended or are given up."""
        last = time.monotonic()  # when something came
        while not merge.done:
            wait = self.wait()
            look = LOOK if self.selection.follow else wait
            events = merge.batch(look if look is None or wait is None else min(look, wait))
            if self._broken:
                self._broken -= {event.host for event in events if isinstance(event, FrameArrived)}
            if events:
                self.on_events(events)
                last = time.monotonic()
                continue
            if wait is not None:
                self.on_events([])
            if merge.ended and time.monotonic() - last > LATE:
                behind = self._wanted - set(merge.ended)  # connections may look alive for long
                gone_on = bool(behind) and self._has_gone_on(set(merge.ended))
                for host in behind:
                    if gone_on or all(_missed_host(record, host) for record in merge.ended.values()):
                        merge.give_up(host)
        while (wait := self.wait()) is not None:
            time.sleep(wait)
            self.on_events([])

    def _has_gone_on(self, hosts: set[str]) -> bool:
        """Whether these hosts tell of a later attempt: who has not told its end is held up, and nobody waits for it."""
        view = self._view(hosts, patient=True)
        return view is not None and view.attempt > self.run.attempt

    def _retry(self, attempt: int, error: ClusterddpError) -> float | None:
        """Seconds until a broken stream is opened again, None for never: without end while any other host lives."""
        if not self.selection.follow:
            return brief_backoff(attempt, error)
        if isinstance(error, HostError):
            self._broken.add(error.host)
        if not isinstance(error, UnreachableError):
            return None
        ended = self._merge.ended if self._merge else {}
        if ended and self._wanted <= set(ended) | self._broken:
            if any(_missed_host(record, error.host) for record in ended.values()):
                return None
            self._alone_since = self._alone_since or time.monotonic()
            if time.monotonic() - self._alone_since > LOST_AFTER:
                return None
        return backoff(attempt, error)

    def _wait_for_end(self) -> RunView:
        """Wait, after the logs have ended, for the hosts' exit records or for another attempt.

        Until then, hosts that have not reported their end are not asked: they may not answer at all.
        """
        deadline = time.monotonic() + SETTLE_LIMIT
        ended = set(self._merge.ended) if self._merge else set()
        asked, began = set(ended), None
        while True:
            late = time.monotonic() > deadline
            view = self._view(asked, patient=not late)
            if view and view.attempt > self.run.attempt:
                if not asked >= set(view.record.hosts):
                    asked = set(view.record.hosts)  # a spare among them has not been asked yet
                    continue
                began = began or time.monotonic()
                if all(self.run.at(view).spools.values()) or time.monotonic() - began > GATHER_LIMIT:
                    return view  # who is not there yet, or does not answer, is looked for while the others are shown
            if view and not view.live:
                view = self._view(None, patient=not late)
            if view and not view.live and (late or not ended & set(view.silent)):
                return view  # who has told us its end and is silent now answers again, or it is lost after all
            managed = view and view.job  # it is over when the workload manager says so
            if view and late and not managed and view.state() != "queued" and self.selection.hosts is None:
                return view
            time.sleep(0.1)

    def _view(self, hosts: set[str] | None, *, patient: bool) -> RunView | None:
        """The run as its hosts, or these, tell it; with ``patient`` None instead of an error when none answers."""
        try:
            return self.run.view(hosts)
        except ClusterddpError:
            if not patient:
                raise
            return None


def _missed_host(record: Mapping[str, Any] | None, host: str) -> bool:
    """Whether a node's exit record says that it ended because it lost contact with that host."""
    reason = str(record.get("reason")) if record and record.get("ours") else ""
    return " lost" in reason and host in re.findall(r"[^\s,]+", reason)
