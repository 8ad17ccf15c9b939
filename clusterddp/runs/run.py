"""One run, live or past: its lines, its status, its end."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, UsageError
from clusterddp.hosts.ask import reading_answer
from clusterddp.hosts.fanout import values
from clusterddp.logs.renderers import lines
from clusterddp.logs.selection import Selection, selected_by
from clusterddp.remote.shared.processes.process_records import SignalRequest
from clusterddp.remote.shared.run.run_settings import GRACE
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.verdict.judge import CTRL_C
from clusterddp.runs import signals
from clusterddp.runs.ask_workers import each_spool, take_stacks
from clusterddp.runs.ending import SILENCE_LIMIT
from clusterddp.runs.follow import Follower
from clusterddp.runs.run_on_hosts import RunOnHosts
from clusterddp.runs.wait import wait_for
from clusterddp.text.units import duration, shown, split_names
from clusterddp.text.units import ranks as read_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from typing_extensions import Unpack

    from clusterddp.hosts.client import Host
    from clusterddp.logs.lines import LogLine
    from clusterddp.logs.selection import Words
    from clusterddp.remote.shared.processes.worker_stacks import WorkerStack
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.signals import Signalled
    from clusterddp.runs.stopped_ranks import PdbSession, StoppedRank
    from clusterddp.runs.view.run_view import RunView
    from clusterddp.runs.view.verdict_lines import Verdict
    from clusterddp.runs.why import Why


def interrupt_reason(interrupt: KeyboardInterrupt) -> str:
    """Return the reason that is recorded when Ctrl-C, or a signal treated like it, stops a run."""
    return f"{interrupt.args[0]} to its operator" if interrupt.args else CTRL_C


@dataclass(repr=False)
class Run(RunOnHosts):
    """One run, live or past. The hosts keep its state; this object queries them."""

    def stacks(self, ranks: Collection[int] | None = None) -> list[WorkerStack]:
        """Return the current stacks of the live workers with these ranks, or of all, by rank.

        A host without an answer is missing; its error is shown. It takes a few seconds at most. Where a host has no
        py-spy, a signal prints the stack, which may end a blocking C call of the worker early (EINTR).

        Raises:
            UsageError: These are no ranks.
        """
        wanted = read_ranks(ranks)
        return take_stacks(self.latest(), wanted)

    def why(self, view: RunView | None = None) -> Why:
        """Return why the run does not go on, or how it ended: the rank, the operation and the line, in a sentence.

        It asks all workers twice, a second apart, and takes the stacks of a few of them.

        Args:
            view: What hosts reported of the run just now, with evidence; None: they are asked.
        """
        from clusterddp.runs.why import explain  # noqa: PLC0415 - only for `why`

        return explain(self, view or self.view())

    def breakpoints(self) -> list[StoppedRank]:
        """Return the workers that wait at ``breakpoint()``, or have somebody attached, by rank."""
        from clusterddp.runs.stopped_ranks import find_stopped  # noqa: PLC0415 - only for `debug`

        return find_stopped(self.latest())

    def stop_rank(self, rank: int) -> StoppedRank | None:
        """Stop a live worker where it is, at a ``breakpoint()`` or not, for ``debug``; None if there is no such rank.

        Python 3.14 and newer can be stopped so. Who does not attach within 10 s lets it go on.

        Raises:
            RunError: It cannot be stopped; the message says why.
        """
        from clusterddp.runs.stopped_ranks import stop_rank  # noqa: PLC0415 - only for `debug`

        return stop_rank(self.latest(), rank)

    def debug(self, stop: StoppedRank) -> PdbSession:
        """Return pdb of a stop (of ``breakpoints()`` or ``stop_rank``), attached until it is closed; then it goes on.

        Raises:
            HostError: The host does not answer. Whatever ends the connection later is raised by ``take``.
        """
        from clusterddp.runs.stopped_ranks import PdbSession  # noqa: PLC0415 - only for `debug`

        return PdbSession(self.latest(), stop)

    def signal(self, name: str) -> list[Signalled]:
        """Send a signal to every live worker that handles it; return the result for each worker, by rank.

        Args:
            name: ``USR1``, ``USR2`` or another of ``runs.signals.SIGNALS``.

        Raises:
            UsageError: The signal may not be sent.
            HostsError: Some hosts did not answer; on the others the signal was sent.
        """
        number = signals.signal_name(name)

        def send(host: Host, spool: str) -> list[Signalled]:
            answer = host.call("signal", to_fields(SignalRequest(spool=spool, signal=number)))
            with reading_answer(host.name):
                return signals.read(host.name, answer)

        results = values(each_spool(self.latest(), send, unheard=True))
        return sorted((worker for workers in results for worker in workers), key=lambda worker: worker.rank)

    def logs(
        self, selection: Selection | None = None, *, follow: bool = False, **words: Unpack[Words]
    ) -> Iterator[LogLine]:
        """Yield the run's lines: past ones in order of time, then, with ``follow``, new ones until it ends.

        Args:
            selection: Which lines; all by default.
            follow: Go on while the run is live (replaces ``selection.follow``).
            words: Instead of a selection: ``rank``, ``host``, ``stream``, ``since``, ``until``, ``grep``, ``tail``.

        Raises:
            UsageError: A keyword or its value is invalid.
        """
        if selection and words:
            raise UsageError(f"{min(words)} beside a selection", remedy="put it into the selection")
        return self._read_lines(replace(selection or self._selection(words), follow=follow, timed=True))

    def _selection(self, words: Words) -> Selection:
        """Convert the keywords of ``logs``."""
        pattern = words.get("host")
        if not isinstance(pattern, str | None):
            raise UsageError(f"host: {shown(pattern)} is no text", remedy="write a host's name or a pattern")
        if pattern is not None:
            self.hosts_like(pattern, "host")  # raises for one that is invalid or matches nothing
        return selected_by(words, time.time_ns())

    def _read_lines(self, selection: Selection) -> Iterator[LogLine]:
        """Yield the selected lines of all hosts; an attempt before the last one has ended, so it is not followed."""
        is_last = self.attempt == max(self.attempts, default=self.attempt)
        follow = selection.follow and is_last
        run = self
        if follow:
            run = self.begun(lambda _line: None)
        elif self.live and is_last:  # hosts may have begun or joined since
            newest = self.at(self.view(brief=True))
            if newest.attempt == self.attempt or not self.attempts:  # just started: it may be in another by now
                run = newest
        follower = Follower(run, replace(selection, follow=follow), lambda _event, line: self.cluster.notify(line))
        yield from lines(follower.batches())

    def wait(self, timeout: float | str | None = None) -> Verdict:
        """Wait until the run has ended; return how it ended.

        Args:
            timeout: Seconds, or a duration such as ``5m``; None: as long as it takes.

        Raises:
            UsageError: The timeout is no duration.
            RunError: The run has not ended in that time.
        """
        return wait_for(self, self.cluster.notify, None if timeout is None else _duration("timeout", timeout))

    def stop(
        self, *, grace: float | str = GRACE, reason: str = "by another command", hosts: str | Iterable[str] = ()
    ) -> list[Proof]:
        """End the run on every host (or on ``hosts``), and prove that nothing of it is left.

        Args:
            grace: Seconds, or a duration, between SIGTERM and SIGKILL.
            reason: What the run's record will give as the reason.
            hosts: Only these, as ``"gpu00,gpu01"`` or several names; empty: every host.

        Raises:
            UsageError: The grace is no duration, or ``hosts`` names no host, as ``","`` does.
        """
        seconds = _duration("grace", grace)
        names = split_names(hosts)
        if hosts and not names:
            raise UsageError("hosts names no host", remedy="write gpu00,gpu01; leave it out to stop every host")
        names = tuple(dict.fromkeys(names or self._hosts_to_stop()))
        return self.cluster.launcher_of(self.record).cancel(self.cluster, self.id, names, grace=seconds, reason=reason)

    def latest(self) -> Run:
        """Return the run as its hosts have it now, with those that joined it; as it was known if none answers."""
        view = self._brief_view()
        if view is None or view.attempt < self.attempt:
            return self
        newest = self.at(view)
        if newest.attempt == self.attempt:  # a host that was too busy to answer so soon keeps its part
            newest.spools = {name: spool or self.spools.get(name, "") for name, spool in newest.spools.items()}
        return newest

    def _brief_view(self) -> RunView | None:
        """Return what the hosts that answer soon report of the run; None if none answers."""
        try:
            return self.view(brief=True, quiet=True, patience=SILENCE_LIMIT)
        except ClusterddpError:
            return None

    def _hosts_to_stop(self) -> list[str]:
        """Return the hosts that may have processes of the run, also those that joined it after it was looked up."""
        view = self._brief_view()
        known = (self, self.at(view)) if view else (self,)
        recorded = [name for run in known for name in run.record.hosts]
        silent = view.silent if view and not view.job else recorded  # a job's nodes are not asked one by one
        parts = [part for run in known for spools in (run.spools, *run.attempts.values()) for part in spools.items()]
        names = [name for name, spool in parts if spool]
        inventory = self.cluster.inventory
        there = {entry.name for entry in inventory.hosts}
        # A host that answers without a part in a run that has not begun has none of its processes. Once it has begun,
        # somebody has removed that host's state, and nothing is known of its processes.
        begun = view is not None and any(node.state == RunState.RUNNING for node in view.nodes)
        unheard = [name for name in recorded if begun or name in silent or name not in there]
        idle = [name for run in known for name in (*run.record.spares, *run.record.lost)]
        chosen = inventory.pattern or inventory.path is None  # then hosts that it lacks are not meant
        return names + [name for name in (*unheard, *idle) if name in there or not chosen]


def _duration(name: str, value: float | str) -> float:
    """Return a duration in seconds; an error names the argument ``name``."""
    try:
        return duration(value)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", remedy=error.remedy) from None
