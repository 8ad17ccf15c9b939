"""``clusterddp logs``: show a run's lines, past and still to come, from any machine; none is lost or shown twice."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterddp.cli.interrupts import explaining_ctrl_c
from clusterddp.cli.output import say, say_event, writer
from clusterddp.cli.progress import Progress
from clusterddp.cli.run_end import print_followed_end
from clusterddp.cli.run_lines import fold_if_many_ranks
from clusterddp.cli.session import open_cluster
from clusterddp.errors import EXIT_FAILED, RunError, UsageError
from clusterddp.logs.merge import StreamBroken
from clusterddp.logs.renderers import renderer_for
from clusterddp.logs.resume import offsets_after, read_lines
from clusterddp.logs.save import Saver
from clusterddp.logs.selection import Selection
from clusterddp.remote.shared.run.event_schema import WORKER_STARTED, of_kind
from clusterddp.runs.follow import Follower
from clusterddp.runs.watch import RunWatch
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clusterddp.logs.merge import Event
    from clusterddp.logs.render import Renderer
    from clusterddp.logs.resume import Offsets
    from clusterddp.runs.run import Run
    from clusterddp.runs.run_on_hosts import RunOnHosts
    from clusterddp.runs.view.verdict_lines import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class LogsOptions:
    """The options of ``logs`` besides those that choose the run."""

    follow: bool
    rank: tuple[int, ...] | None
    host: str | None
    since: int | None
    until: int | None
    grep: str | None
    attempt: int | str
    tail: int | None
    stream: str
    show_agents: bool
    show_all: bool
    fold: bool | None
    silence: float
    timestamps: bool
    as_json: bool
    after: Path | None
    save: Path | None


def act(inventory: Path | None, limit: str | None, run: str | None, **options: Any) -> int:
    """Show, follow or save a run's lines; return the exit code."""
    given = LogsOptions(**options)
    whole = given.show_all or given.rank is not None
    renderer = renderer_for(sys.stdout.buffer, as_json=given.as_json, timestamps=given.timestamps, whole=whole)
    selection = _selection(given, renderer)
    with open_cluster(inventory, limit) as cluster:
        found = cluster.find(run)
        if not selection.follow:
            return _show_lines(found, selection, renderer, given)
        with explaining_ctrl_c(found):
            return _show_lines(wait_until_begun(found), selection, renderer, given)


def _show_lines(found: Run, selection: Selection, renderer: Renderer, given: LogsOptions) -> int:
    """Show or save the lines that the options choose; return the exit code."""
    _report_missing_ranks(found, given.rank or ())
    saver = Saver(given.save, found.id) if given.save else None
    offsets = saver.offsets() if saver else {}
    if given.after:
        offsets = offsets_after(read_lines(given.after, found.id))
    # a FILE without lines has none of the first attempt either
    first = max(offsets, default=1 if given.after else found.attempt)
    attempts = select_attempts(found, given.attempt, first, follow=selection.follow)
    if given.host:
        _refuse_hosts_without_part(attempts, given.host, found.hosts_like(given.host, "--host"))
        selection = replace(selection, pattern=given.host)
    reader = AttemptReader(attempts, selection, given.silence)
    if saver:
        return reader.save(saver, offsets)
    fold_if_many_ranks(renderer, found, given.rank, given.fold)
    with writer(renderer) as write:
        reader.read(write, offsets, renderer.wait)
    return reader.exit_code()


def _report_missing_ranks(run: Run, ranks: tuple[int, ...]) -> None:
    """Report the ranks that no worker of any attempt had; raise RunError if none of the given ranks exists.

    A worker has its rank from the start or on a host that joined; only for the latter are the hosts asked.
    """
    late = {rank for rank in ranks if rank >= (run.record.world_size or 0)}
    if not late:
        return
    view = run.view()
    started = {event.rank for node in (*view.earlier, *view.nodes) for event in of_kind(node.events, WORKER_STARTED)}
    missing = late - started
    if missing == set(ranks):
        view.holders(ranks)
    elif missing and not view.silent and not view.record.lost:  # else a host that is not heard may have had them
        say(f"run {run.id} has no rank {', '.join(map(str, sorted(missing)))}: only the other ranks are shown")


def wait_until_begun(run: Run) -> Run:
    """Wait until the run has something to follow, with a status line meanwhile; return it."""
    with Progress() as progress:
        return run.begun(progress.show)


def _selection(given: LogsOptions, renderer: Renderer) -> Selection:
    """Return the lines that the options select; raises UsageError if two options contradict each other."""
    lines = [name for name in ("since", "until", "grep", "tail", "after") if getattr(given, name) is not None]
    lines += [name for name, word in (("json", "as_json"), ("timestamps", "timestamps")) if getattr(given, word)]
    if given.save and lines:
        raise UsageError(f"--save writes whole files: --{lines[0]} cannot choose lines of them", remedy="leave it out")
    return Selection(
        ranks=given.rank,
        agent=given.show_agents or None,
        teardown=given.show_agents or given.as_json or bool(given.save),
        stream=given.stream,
        follow=given.follow,
        since_ns=given.since,
        until_ns=given.until,
        grep=given.grep,
        tail=given.tail,
        timed=renderer.timed and not given.save,
        partials=renderer.partials or bool(given.save),
        ordered=not given.save,
    )


class AttemptReader:
    """Reads the lines of a run's attempts, one after the other; follows the last if ``selection`` says so."""

    def __init__(self, attempts: list[Run], selection: Selection, silence: float) -> None:
        self.run: RunOnHosts = attempts[-1]  # once it was followed, in its last attempt
        self.selection, self.silence = selection, silence
        self.verdict: Verdict | None = None
        self.until_passed = False  # the run was followed until the time of ``--until``, and goes on
        read = attempts[:-1] if selection.follow else attempts  # hosts of them that do not answer were named already
        # hosts whose lines are missing
        self.missing_hosts = {host for run in read for host in run.selected(selection) if not run.spools[host]}
        if self.missing_hosts:
            say(f"lines are missing: {folded_names(sorted(self.missing_hosts))}")
        self.attempts = [*(_without_hosts(run, self.missing_hosts) for run in read), *attempts[len(read) :]]

    def read(
        self,
        on_events: Callable[[list[Event]], None],
        offsets: Offsets,
        wait: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Pass the events of all lines after ``offsets`` to ``on_events``, in batches; ``wait`` is Follower's."""

        def note_missing(events: list[Event]) -> None:
            broken = [event for event in events if isinstance(event, StreamBroken)]
            self.missing_hosts |= {event.host for event in broken if event.retry is None}
            on_events(events)

        *before, last = self.attempts
        for run in before:
            Follower(run, self._selection_of(run, offsets, follow=False), say_event, wait).follow(note_missing)
        selection = self._selection_of(last, offsets, follow=self.selection.follow)
        if not selection.follow:
            Follower(last, selection, say_event, wait).follow(note_missing)
            return
        with RunWatch(last, say_event, silence=self.silence) as watch:
            follower = Follower(last, selection, say_event, wait, watch)
            self.verdict = follower.follow(note_missing)
            self.run, self.until_passed = follower.run, follower.until_passed

    def _selection_of(self, run: Run, offsets: Offsets, *, follow: bool) -> Selection:
        """Return the selection for one attempt, from its ``offsets`` on."""
        return replace(self.selection, follow=follow, start=offsets.get(run.attempt, {}))

    def save(self, saver: Saver, offsets: Offsets) -> int:
        """Write all lines after ``offsets`` to files, say how much, and return the exit code."""

        def write(events: list[Event]) -> None:
            saver.save(events)
            for event in events:
                if isinstance(event, StreamBroken):
                    say(event.notice)

        try:
            self.read(write, offsets)
        finally:
            say(f"run {self.run.id}: {saver.summary()}")
        return self.exit_code()

    def exit_code(self) -> int:
        """Print how a followed run ended, and return its exit code; otherwise return 1 if lines are missing."""
        if not self.selection.follow or self.until_passed:
            return EXIT_FAILED if self.missing_hosts else 0
        return print_followed_end(self.run, self.verdict)


def _without_hosts(run: Run, hosts: set[str]) -> Run:
    return replace(run, spools={name: spool for name, spool in run.spools.items() if name not in hosts})


def select_attempts(run: Run, attempt: int | str, first: int, *, follow: bool) -> list[Run]:
    """Return the attempts that ``logs`` reads, oldest first, each as a Run of that attempt.

    ``attempt`` is the option's value. With ``last``, earlier attempts are read too, from number ``first`` on. Raises
    RunError if the run has no such attempt, or it has ended and cannot be followed.
    """
    if attempt in {"last", "all"}:
        first = 1 if attempt == "all" else first
        return [*(run.of_attempt(number) for number in sorted(run.attempts) if first <= number < run.attempt), run]
    found = run.of_attempt(int(attempt))
    if follow and found.attempt != run.attempt:
        raise RunError(f"attempt {attempt} of run {run.id} has ended", remedy="leave --follow out, or --attempt")
    return [found]


def _refuse_hosts_without_part(attempts: list[Run], pattern: str, hosts: list[str]) -> None:
    """Raise RunError if none of the hosts that the pattern matches has a part of the run."""
    all_hosts = list(dict.fromkeys(name for run in attempts for name in run.spools))
    if set(hosts).isdisjoint(all_hosts):
        raise RunError(f"run {attempts[0].id} has no part on {pattern}", remedy=f"its hosts: {folded_names(all_hosts)}")
