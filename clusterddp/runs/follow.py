"""Follow a run: pass on its log events as they arrive, then return its verdict."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, RunRemovedError, UsageError
from clusterddp.logs.checked_frames import WorkersStarted
from clusterddp.logs.merge import FrameArrived, Merge, backoff, brief_backoff
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.runs.ending import LOST_AFTER, EndDetector, clock_time, missing_lines, query_view
from clusterddp.runs.streams import Streams
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from clusterddp.logs.merge import Event
    from clusterddp.logs.selection import Selection
    from clusterddp.runs.run_on_hosts import RunOnHosts
    from clusterddp.runs.view.run_view import RunView
    from clusterddp.runs.view.verdict_lines import Verdict
    from clusterddp.runs.watch import RunWatch

POLL_INTERVAL = 0.2  # seconds between queries for the run's end, once all streams have ended
REST_TIMEOUT = 5.0  # seconds without lines of a run that was stopped after which no more are waited for
GATHER_LIMIT = 5.0  # seconds for all hosts of another attempt to begin their parts
SETTLE_LIMIT = 30.0  # seconds for the hosts' exit records after their logs have ended


class Follower:
    """Follows one run; ``verdict`` is how it ended, once ``batches`` is exhausted, or None if the run goes on.

    ``run`` is the run in the attempt that is followed, with the hosts that have joined it.

    ``tell`` receives notable events of the run as a name (``lost``, ``relaunched``) and a line. ``wait`` returns after
    how many seconds without log events an empty batch is yielded; None: only batches with events are. ``watch`` takes
    note of each batch after the caller has handled it.
    """

    def __init__(
        self,
        run: RunOnHosts,
        selection: Selection,
        tell: Callable[[str, str], None] = lambda _event, _line: None,
        wait: Callable[[], float | None] = lambda: None,
        watch: RunWatch | None = None,
    ) -> None:
        self.run, self.selection, self.tell, self.wait = run, selection, tell, wait
        self.watch = watch
        self.verdict: Verdict | None = None
        self.until_passed = False  # the run goes on, but no more lines of it are selected
        self._merge: Merge | None = None
        self._silent: set[str] = set()  # hosts that are known not to answer
        self._silence_reported = False  # whether it was reported that no host answers

    def follow(self, on_events: Callable[[list[Event]], None]) -> Verdict | None:
        """Call ``on_events`` with each batch; return the verdict, None if the selection does not follow the run."""
        for events in self.batches():
            on_events(events)
        return self.verdict

    def batches(self) -> Iterator[list[Event]]:
        """Yield batches of log events until every host has ended or is lost; go on with the attempts after a relaunch.

        Without ``follow`` in the selection, it yields the lines that there are now, and sets no verdict.
        """
        while True:
            streams, hosts = Streams(self.run, self.selection), self.run.selected(self.selection)
            with Merge(hosts, streams, follow=self.selection.follow, retry=self._retry) as self._merge:
                if not self.selection.follow:
                    yield from self._batches_of(self._merge, streams)
                    return
                with EndDetector(self.run, streams, self._merge) as detector:
                    yield from self._batches_of(self._merge, streams)
                self._silent = detector.silent_hosts()
            for line in detector.missing_lines_notice():
                self.tell("missing", line)
            if self._is_past_until():
                self.until_passed = True
                return
            view = self._wait_for_end()
            if view.attempt == self.run.attempt:
                self.run = self.run if view.live else self.run.at(view)
                self.verdict = self.run.watched(view)
                return
            self.selection = replace(self.selection, start={}, tail=None)
            for attempt in range(self.run.attempt + 1, view.attempt):
                yield from self._missed(attempt, view)
            lost = set(view.record.lost).difference(self.run.record.lost)
            self.run = self.run.at(view).begun(lambda _line: None)
            for host in sorted(lost):
                self.tell("lost", f"{host} is lost")
            if self.run.spools:  # empty: the attempt ended before any host began its part
                self.tell("relaunched", f"attempt {self.run.attempt} on {folded_names(self.run.record.hosts)}")

    def note_shown(self) -> None:
        """Note that the last batch was shown, though its handling may yet be interrupted."""
        if self._merge:
            self._merge.confirm()

    def rest(self, hosts: Container[str]) -> Iterator[list[Event]]:
        """Yield, of these hosts, the batches after those that were shown before ``batches`` was interrupted.

        The last batch counts as shown only if ``note_shown`` was called for it: otherwise its lines are read again. The
        run has been stopped meanwhile. A host that says nothing for some time is not waited for.
        """
        if self._merge is None:
            return
        start = {host: {**self.selection.start.get(host, {}), **read} for host, read in self._merge.offsets.items()}
        selection = replace(self.selection, follow=False, tail=None, start=start)
        names = [host for host in self.run.selected(selection) if host in hosts]
        with Merge(names, Streams(self.run, selection), retry=lambda *_: None) as merge:
            while events := merge.batch(REST_TIMEOUT):
                yield events

    def _missed(self, attempt: int, view: RunView) -> Iterator[list[Event]]:
        """Yield the batches of an attempt that began and ended unnoticed, for example while this machine was asleep."""
        if attempt not in view.spools:  # no host that answers began its part
            return
        run = self.run.at(view).of_attempt(attempt)
        self.tell("relaunched", f"attempt {attempt} on {folded_names(list(run.spools))}")
        selection = replace(self.selection, follow=False)
        hosts = run.selected(selection)
        heard = [name for name in hosts if run.spools[name]]
        if unheard := set(hosts).difference(heard):
            self.tell("missing", missing_lines(run, dict.fromkeys(unheard)))
        streams = Streams(run, selection)
        with Merge(heard, streams, follow=False, retry=brief_backoff) as merge:
            yield from self._batches_of(merge, streams)

    def _batches_of(self, merge: Merge, streams: Streams) -> Iterator[list[Event]]:
        """Yield the batches of one attempt until every host has ended or is given up."""
        while not merge.done:
            wait = self.wait()
            events = merge.batch(wait)
            if events or wait is not None:
                yield events
            if self.watch:
                self.watch.note_events(events)
            started = {event.host for event in events if _starts_workers(event)} - self._silent
            if started and self.selection.follow and self.run.record.min_nodes is not None:
                self._add_joined(merge, started)
            self._report_broken(merge, streams)
        while (wait := self.wait()) is not None:
            time.sleep(wait)
            yield []

    def _add_joined(self, merge: Merge, started: set[str]) -> None:
        """Read also the hosts that have joined the run, as those that have just started their workers again report it.

        Only hosts of the inventory can be read.
        """
        try:
            view = query_view(self.run, started, self._silent, brief=True)
        except ClusterddpError:  # the next start of workers asks again
            return
        reachable = {entry.name for entry in self.run.cluster.inventory.run_hosts}
        joined = (reachable & set(view.record.hosts)) - self.run.spools.keys()
        if view.attempt != self.run.attempt or not joined:
            return
        self.run = replace(self.run, spools={**self.run.spools, **dict.fromkeys(sorted(joined), "")})
        for host in joined.intersection(self.run.selected(self.selection)):
            merge.add(host)

    def _report_broken(self, merge: Merge, streams: Streams) -> None:
        """Report, once per silence, that the streams of all hosts are broken, so the run's state is unknown."""
        waited = merge.waited_for
        if not waited or not merge.broken.issuperset(waited) or self._leaves_out:
            self._silence_reported = False
        elif not self._silence_reported and not merge.ended:
            self._silence_reported = True
            times = [silence for host in waited if (silence := streams.silence(host)) is not None]
            since = f" since {clock_time(time.time() - min(times))}" if times else ""
            shows = f"`clusterddp status {self.run.id}`"
            self.tell(
                "unheard", f"no host of the run answers{since}: how it goes on is not known here; {shows} asks later"
            )

    def _retry(self, attempt: int, error: ClusterddpError) -> float | None:
        """Return the seconds before a broken stream is reopened; None: never.

        A follow retries without limit, except for the last lines before ``--until`` if other hosts have sent theirs,
        and where hosts that are not read say that the run goes on in a later attempt, or has ended.
        """
        if not self.selection.follow:
            return brief_backoff(attempt, error)
        until, ended = self.selection.until_ns, self._merge and self._merge.ended
        is_late = until is not None and time.time_ns() > until + LOST_AFTER * 1e9
        is_over = (ended and is_late) or (attempt > 1 and self._is_over_elsewhere())
        return None if is_over else backoff(attempt, error)

    def _is_over_elsewhere(self) -> bool:
        """Return whether hosts that are not selected have reported the end of this attempt, or the next one."""
        if not self._leaves_out:
            return False
        broken = set(self._merge.broken) if self._merge else set()
        try:
            view = query_view(self.run, None, self._silent | broken, brief=True)
        except ClusterddpError:  # the next try asks again
            return False
        return view.attempt > self.run.attempt or (view.settled and not view.live)

    @property
    def _leaves_out(self) -> bool:
        """Whether hosts of the attempt are not read, because the selection leaves them out."""
        return len(self.run.selected(self.selection)) < len(self.run.spools)

    def _wait_for_end(self) -> RunView:
        """Wait, after the logs have ended, for the hosts' exit records or for another attempt.

        Until the others' reports show either, hosts that have not ended are not asked: they may not answer at all.
        """
        deadline = time.monotonic() + SETTLE_LIMIT
        ended = set(self._merge.ended) if self._merge else set()
        asked, next_seen = set(ended), None
        while True:
            late = time.monotonic() > deadline
            view = self._query_view(asked, patient=not late)
            if view and view.attempt > self.run.attempt:
                if not asked >= set(view.record.hosts):
                    asked = set(view.record.hosts)  # a spare among them has not been asked yet
                    continue
                next_seen = next_seen or time.monotonic()
                if all(self.run.at(view).spools.values()) or time.monotonic() - next_seen > GATHER_LIMIT:
                    return view  # hosts that are missing or silent are retried while the others are shown
            if view and not view.live:
                view = self._query_view(None, patient=not late)
            if view and not view.live and (late or view.settled or not ended & set(view.silent)):
                return view  # else a host that reported its end is silent: it answers again, or is lost
            managed = view and view.job  # a managed job ends when the workload manager reports it
            if view and late and not managed and view.state() != RunState.QUEUED and self.selection.pattern is None:
                return view
            time.sleep(POLL_INTERVAL)

    def _is_past_until(self) -> bool:
        """Return whether the streams have ended because the selection's time has passed: the run goes on."""
        until = self.selection.until_ns
        if until is None or time.time_ns() <= until:
            return False
        view = self._query_view(None, patient=True)
        return view is not None and view.live

    def _query_view(self, hosts: set[str] | None, *, patient: bool) -> RunView | None:
        """Return the run as the hosts report it; with ``patient``, None instead of an error if none answers.

        Raises RunRemovedError if all hosts answer, and none knows the run.
        """
        try:
            return query_view(self.run, hosts, self._silent)
        except ClusterddpError as error:
            if not patient or isinstance(error, UsageError):  # such as a Cluster that was closed meanwhile
                raise
            if not isinstance(error, RunRemovedError) or self._silent:
                return None
            if hosts is None:
                raise
            return self._query_view(None, patient=patient)


def _starts_workers(event: Event) -> bool:
    """Return whether an event says that a host has restarted its workers, which happens when another host joins."""
    return isinstance(event, FrameArrived) and isinstance(event.frame, WorkersStarted)
