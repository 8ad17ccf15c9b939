"""One run, live or past: its lines, its status, its end.

The hosts keep the run's state; this module queries them.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from clusterddp.errors import ClusterddpError, RunError, UnreachableError, UsageError
from clusterddp.hosts.fanout import Outcome, T, each, reading_answer, values
from clusterddp.inventory.patterns import select
from clusterddp.logs import LogLine, Merge, Selection, backoff, brief_backoff, lines
from clusterddp.logs.selection import selected_by
from clusterddp.remote.shared.names.host_names import folded_names
from clusterddp.remote.shared.run.node_env import GRACE
from clusterddp.remote.shared.verdict.judge import CTRL_C
from clusterddp.runs import local_cache, signals, stacks
from clusterddp.runs.ending import Ending
from clusterddp.runs.node_answers import ALL, Wanted
from clusterddp.runs.run_view import RunView, run_views
from clusterddp.runs.streams import Streams
from clusterddp.runs.wait import wait_for
from clusterddp.text.units import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Unpack

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.connections import Connections
    from clusterddp.inventory import Inventory
    from clusterddp.logs.selection import Words
    from clusterddp.project import Project
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.signals import Signalled
    from clusterddp.runs.stacks import WorkerStack
    from clusterddp.runs.verdict_lines import Verdict


_log = logging.getLogger("clusterddp")


class Carrier(Protocol):
    """What a run's launcher does for it after the start; what comes before is in launch/launcher.py."""

    def begun(self, cluster: RunHosts, run: Run, progress: Callable[[str], None]) -> Run:
        """Wait until the run's nodes have begun, or it has ended; ``progress`` receives what it waits for.

        Raises:
            ClusterddpError: The run can never begin; nothing is left of it.
        """

    def stop(self, cluster: RunHosts, run: str, hosts: Sequence[str], *, grace: float, reason: str) -> list[Proof]:
        """End the run on these hosts; return what each found, with a Proof with an error for a host not reached."""

    def reader(self, cluster: RunHosts, run: str, host: str) -> Host:
        """Return a connection that can read the files of a run's host: its output and records."""

    def host(self, cluster: RunHosts, run: str, host: str) -> Host:
        """Return a connection to the host of a live run itself, which sees its workers."""


class RunPart(NamedTuple):
    """A run's part on one host."""

    name: str
    spool: str


class RunHosts(Protocol):
    """The part of ``Cluster`` that a Run uses."""

    inventory: Inventory
    project: Project
    notify: Callable[[str], None]
    connections: Connections  # also to hosts that the inventory does not name

    def host(self, name: str) -> Host:
        """Return the open host with that name."""

    def carrier(self, record: RunRecord) -> Carrier:
        """Return the launcher of the run with this record."""

    def gather(
        self,
        run: str,
        hosts: Container[str] | None = None,
        wanted: Wanted = ALL,
        *,
        quiet: bool = False,
        patience: float | None = None,
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the run's nodes as the hosts report them, and the hosts that gave no answer for ``patience`` seconds.

        ``quiet``: do not report those hosts to the user.
        """


def interrupted_by(interrupt: KeyboardInterrupt) -> str:
    """Return the reason recorded for a stop by Ctrl-C, or by a signal treated like it."""
    return f"{interrupt.args[0]} to its operator" if interrupt.args else CTRL_C


def current_spools(view: RunView, inventory: Inventory) -> dict[str, str]:
    """Return the last attempt's spool path by host; empty for a host that did not answer or is still starting."""
    starting = {entry.name for entry in inventory.hosts} & set(view.record.hosts) if view.live else set()
    return view.current | dict.fromkeys(sorted(starting - view.current.keys()), "")


@dataclass(repr=False)
class Run:
    """One run, live or past. The hosts keep its state; this object queries them.

    Attributes:
        cluster: The cluster whose hosts are asked.
        id: The run id.
        attempt: The attempt that the other fields describe: the last one, unless ``of_attempt`` chose another.
        spools: That attempt's folder on each of its hosts; empty for a host that did not answer or is only starting.
        record: What the run recorded about itself when it started.
        attempts: Every attempt's spools; empty for a run that has just been started.
        live: Whether it was live when it was looked up.
        submitted: The ids of all runs submitted together, if this one was just submitted.
        notified: Whether its hosts notify the webhook that it was started with.
        secrets: Values by name of its secrets that its hosts must receive when they begin.
    """

    cluster: RunHosts
    id: str
    attempt: int
    spools: Mapping[str, str]
    record: RunRecord
    attempts: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    live: bool = True
    submitted: tuple[str, ...] = ()
    notified: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        name = f" ({self.record.name})" if self.record.name else ""
        return f"<Run {self.id}{name}, attempt {self.attempt} on {folded_names(list(self.spools)) or 'no host'}>"

    def of_attempt(self, number: int) -> Run:
        """Return the same run as of one attempt, whose lines ``logs`` and ``tail`` then return.

        Raises:
            RunError: No host that answers knows of such an attempt.
        """
        known = {self.attempt: self.spools, **self.attempts}
        if number not in known:
            numbers = ", ".join(map(str, sorted(known)))
            raise RunError(f"run {self.id} has no attempt {number}", remedy=f"its attempts: {numbers}")
        return replace(self, attempt=number, spools=known[number], attempts=known)

    @property
    def hosts(self) -> set[str]:
        """Every host that takes part in the run, took part in it, or may join it."""
        earlier = (name for spools in self.attempts.values() for name in spools)
        return {*self.spools, *earlier, *self.record.hosts, *self.record.spares}

    def at(self, view: RunView) -> Run:
        """Return the same run as of the last attempt of a view."""
        spools = current_spools(view, self.cluster.inventory)
        record = view.record if view.nodes or view.about else self.record
        return replace(self, attempt=view.attempt, spools=spools, record=record, attempts=view.spools)

    def view(
        self,
        hosts: Container[str] | None = None,
        *,
        brief: bool = False,
        quiet: bool = False,
        patience: float | None = None,
    ) -> RunView:
        """Return the run as all its hosts, or the given ones, report it now.

        Args:
            hosts: Ask only these.
            brief: Get its state alone, without processes and evidence.
            quiet: Do not report hosts that do not answer.
            patience: Seconds of silence after which a host counts as not answering; None: as long as a connection may
                take.

        Raises:
            RunError: No host that answers knows the run.
            HostError, HostsError: None of its hosts answers.
        """
        wanted, names = Wanted(brief=brief), hosts or self.hosts
        nodes, silent = self.cluster.gather(self.id, names, wanted, quiet=quiet, patience=patience)
        for view in run_views(nodes, silent, local_cache.kept(self.cluster.project, self.id)):
            if view.run == self.id:
                return view
        raise RunError(f"run {self.id} is on no host that answers")

    def detailed(self, brief: RunView) -> RunView:
        """Add processes and evidence to a brief view; hosts that did not answer for it are not asked again."""
        hosts = {str(node["host"]) for node in (*brief.nodes, *brief.earlier, *brief.spares)}
        if not hosts:
            return brief
        view = self.view(hosts)
        for copy in view.other_copies:
            heard = ", ".join(copy.heard)
            _log.debug("%s: a verdict of attempt %d, having heard %s: %s", copy.writer, copy.attempt, heard, copy.line)
        return replace(view, silent=tuple(dict.fromkeys((*view.silent, *brief.silent))))

    def status(self, patience: float | None = None) -> dict[str, Any]:
        """Return the status object of docs/status.md; ``patience`` as in ``view``."""
        return self.view(quiet=patience is not None, patience=patience).to_json()

    def stacks(self) -> list[WorkerStack]:
        """Return each live worker's current stack, by rank. A host without an answer is missing; its error is shown.

        It takes a few seconds at most, and does not disturb the workers.
        """

        def ask(part: RunPart) -> list[WorkerStack]:
            told = self._host(part.name).call("stacks", {"spool": part.spool})
            with reading_answer(part.name):
                return stacks.parse_stacks(part.name, told)

        outcomes = self._each_spool(ask)
        for outcome in outcomes:
            if outcome.error:
                self.cluster.notify(f"no stacks: {outcome.error}")
        return sorted((stack for outcome in outcomes for stack in outcome.value or ()), key=lambda stack: stack.rank)

    def signal(self, name: str) -> list[Signalled]:
        """Send a signal to every live worker that handles it; return the result for each worker, by rank.

        Args:
            name: ``USR1``, ``USR2`` or another of ``runs.signals.SIGNALS``.

        Raises:
            UsageError: The signal may not be sent.
            HostsError: Some hosts did not answer; on the others the signal was sent.
        """
        number = signals.signal_name(name)

        def send(part: RunPart) -> list[Signalled]:
            order = {"spool": part.spool, "signal": number}
            told = self._host(part.name).call("signal", order)
            with reading_answer(part.name):
                return signals.read(part.name, told)

        told = values(self._each_spool(send))
        return sorted((worker for workers in told for worker in workers), key=lambda worker: worker.rank)

    def _each_spool(self, work: Callable[[RunPart], T]) -> list[Outcome[T]]:
        """Call ``work`` for every host that takes part in this attempt."""
        return each([RunPart(name, spool) for name, spool in self.spools.items() if spool], work)

    def _host(self, name: str) -> Host:
        return self.cluster.carrier(self.record).host(self.cluster, self.id, name)

    def reader(self, host: str) -> Host:
        """Return a connection that can read the files of one of its hosts."""
        return self.cluster.carrier(self.record).reader(self.cluster, self.id, host)

    def begun(self, progress: Callable[[str], None]) -> Run:
        """Return the same run once its nodes have begun; ``progress`` receives what it waits for."""
        return self.cluster.carrier(self.record).begun(self.cluster, self, progress)

    def verdict(self) -> Verdict | None:
        """Return how the run ended; None while it is live."""
        return self.view().verdict()

    def watched(self, view: RunView) -> Verdict | None:
        """Return the verdict on a run watched to its end, and save it in the project; ``view`` is its final view."""
        seen = replace(view, watched=self.live).refined()
        local_cache.keep(self.cluster.project, seen)
        return seen.verdict()

    def stopped(self, proofs: Iterable[Proof]) -> Verdict | None:
        """Return the verdict after a stop with these proofs, and save it; None if no host reports the run."""
        hosts = {proof.host for proof in proofs if not proof.error}
        try:
            return self.watched(self.view(hosts)) if hosts else None
        except ClusterddpError:  # lost meanwhile
            return None

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
        return self._lines(replace(selection or self._selection(words), follow=follow, timed=True))

    def hosts_like(self, pattern: str, said: str) -> list[str]:
        """Return the hosts of the run and the inventory that an Ansible pattern matches.

        ``said`` names where the pattern came from, for errors.

        Raises:
            InventoryError: The pattern is invalid.
        """
        inventory = self.cluster.inventory
        names = dict.fromkeys([*(entry.name for entry in inventory.hosts), *self.hosts])
        found = list(select(pattern, list(names), inventory.groups).hosts)
        return found or list(inventory.matching(pattern, said))

    def _selection(self, words: Words) -> Selection:
        pattern = words.get("host")
        hosts = None if pattern is None else self.hosts_like(pattern, "host")
        return selected_by(words, hosts, time.time_ns())

    def _lines(self, chosen: Selection) -> Iterator[LogLine]:
        hosts, follow = self.selected(chosen), chosen.follow
        retry = backoff if follow else brief_backoff
        streams = self.tail(chosen)
        with Merge(hosts, streams, follow=follow, retry=retry) as merge:
            if not follow:
                yield from lines(merge)
                return
            with Ending(self, streams, merge) as ending:
                yield from lines(merge)
            for line in ending.missing_lines():
                self.cluster.notify(line)

    def selected(self, selection: Selection) -> list[str]:
        """Return the hosts whose streams a selection needs."""
        return [name for name in self.spools if selection.hosts is None or name in selection.hosts]

    def tail(self, selection: Selection) -> Streams:
        """Return an opener for host streams of the selected lines; a Merge calls it, again after each break."""
        return Streams(self.id, self.attempt, self._spool, self.reader, selection)

    def _spool(self, host: str) -> str:
        """Return the spool on a host, even if the host did not answer when the run was looked up."""
        if self.spools[host]:
            return self.spools[host]
        nodes, silent = self.cluster.gather(self.id, {host})
        found = [node["spool"] for node in nodes if node["attempt"] == self.attempt]
        if not found:  # not known yet, and perhaps never: a caller that follows asks again
            raise UnreachableError(host, "no answer" if silent else f"no part of attempt {self.attempt} is there")
        return str(found[0])

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
            hosts: Only these, as ``"gpu00,gpu01"`` or several names.

        Raises:
            UsageError: The grace is no duration.
        """
        seconds = _duration("grace", grace)
        earlier = (name for one in self.attempts.values() for name in one)
        left = (*self.record.spares, *self.record.lost)
        chosen = hosts.split(",") if isinstance(hosts, str) and hosts else hosts
        names = list(dict.fromkeys(chosen or (*self.spools, *earlier, *left)))
        return self.cluster.carrier(self.record).stop(self.cluster, self.id, names, grace=seconds, reason=reason)


def _duration(name: str, value: float | str) -> float:
    try:
        return duration(value)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", remedy=error.remedy) from None
