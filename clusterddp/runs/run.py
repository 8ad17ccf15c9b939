"""One run, live or past: its lines, its status, its end.

The hosts hold its truth; this holds how to ask them.
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
    """What a run's launcher does for it once it has started; what comes before is in launch/launcher.py."""

    def begun(self, cluster: RunHosts, run: Run, progress: Callable[[str], None]) -> Run:
        """The run once its nodes have begun, or it has ended before; ``progress`` takes what it waits for.

        Raises:
            ClusterddpError: it can never begin; nothing is left of it.
        """

    def stop(self, cluster: RunHosts, run: str, hosts: Sequence[str], *, grace: float, reason: str) -> list[Proof]:
        """End the run on these hosts; what was found on each. A host that cannot be asked is a Proof with an error."""

    def reader(self, cluster: RunHosts, run: str, host: str) -> Host:
        """A helper that sees the files of a run's host: its output, its records."""

    def host(self, cluster: RunHosts, run: str, host: str) -> Host:
        """A helper on a host of a live run itself: it sees the workers."""


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
        """The open host of that name."""

    def carrier(self, record: RunRecord) -> Carrier:
        """The launcher of a run with this record."""

    def gather(
        self,
        run: str,
        hosts: Container[str] | None = None,
        wanted: Wanted = ALL,
        *,
        quiet: bool = False,
        patience: float | None = None,
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """The run's nodes as the hosts tell them, and the hosts that do not answer, for so many seconds.

        ``quiet``: these are not told.
        """


def interrupted_by(interrupt: KeyboardInterrupt) -> str:
    """The reason of a stop that Ctrl-C gave, or a signal that acts as it."""
    return f"{interrupt.args[0]} to its operator" if interrupt.args else CTRL_C


def current_spools(view: RunView, inventory: Inventory) -> dict[str, str]:
    """The last attempt's spool path by host; empty for a host that did not answer or is still starting."""
    starting = {entry.name for entry in inventory.hosts} & set(view.record.hosts) if view.live else set()
    return view.current | dict.fromkeys(sorted(starting - view.current.keys()), "")


@dataclass(repr=False)
class Run:
    """One run, live or past. The hosts hold its truth; this holds how to ask them.

    Attributes:
        cluster: Its hosts.
        id: The run id.
        attempt: The attempt that is looked at: the last one, unless ``of_attempt`` chose another.
        spools: That attempt's folder on each of its hosts; empty for one that did not answer, or is only starting.
        record: What the run wrote down of itself.
        attempts: Every attempt's spools; empty for a run that has just been started.
        live: Whether it lived when it was looked for.
        submitted: The ids of all runs that were submitted as one, if it has just been.
        notified: Whether its hosts tell the webhook that it was started with.
        secrets: Values of its secrets that its hosts are to get when they begin, by name.
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
        """The same run as of one attempt: whose lines ``logs`` and ``tail`` give.

        Raises:
            RunError: no host that answers knows of such an attempt.
        """
        known = {self.attempt: self.spools, **self.attempts}
        if number not in known:
            numbers = ", ".join(map(str, sorted(known)))
            raise RunError(f"run {self.id} has no attempt {number}", remedy=f"its attempts: {numbers}")
        return replace(self, attempt=number, spools=known[number], attempts=known)

    @property
    def hosts(self) -> set[str]:
        """Every host that has, or had, or may get a part in it."""
        earlier = (name for spools in self.attempts.values() for name in spools)
        return {*self.spools, *earlier, *self.record.hosts, *self.record.spares}

    def at(self, view: RunView) -> Run:
        """The same run as of the last attempt of a view."""
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
        """The run as its hosts, or these of them, tell it now.

        Args:
            hosts: Only these.
            brief: Its state alone, without processes and evidence.
            quiet: Who does not answer is not told.
            patience: Seconds of silence after which a host counts as one that does not answer; None: as long as a
                connection may take.

        Raises:
            RunError: no host that answers knows it.
            HostError, HostsError: none of its hosts answers.
        """
        wanted, names = Wanted(brief=brief), hosts or self.hosts
        nodes, silent = self.cluster.gather(self.id, names, wanted, quiet=quiet, patience=patience)
        for view in run_views(nodes, silent, local_cache.kept(self.cluster.project, self.id)):
            if view.run == self.id:
                return view
        raise RunError(f"run {self.id} is on no host that answers")

    def detailed(self, brief: RunView) -> RunView:
        """A brief view of the run with processes and evidence; who did not answer for it is not asked again."""
        hosts = {str(node["host"]) for node in (*brief.nodes, *brief.earlier, *brief.spares)}
        if not hosts:
            return brief
        view = self.view(hosts)
        for copy in view.other_copies:
            heard = ", ".join(copy.heard)
            _log.debug("%s: a verdict of attempt %d, having heard %s: %s", copy.writer, copy.attempt, heard, copy.line)
        return replace(view, silent=tuple(dict.fromkeys((*view.silent, *brief.silent))))

    def status(self, patience: float | None = None) -> dict[str, Any]:
        """The contract's status object; ``patience`` as of ``view``."""
        return self.view(quiet=patience is not None, patience=patience).to_json()

    def stacks(self) -> list[WorkerStack]:
        """Where each live worker is now, by rank. A host that does not answer is missing, and its error is told.

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
        """Send a signal to every live worker that handles it; each worker with what became of it, by rank.

        Args:
            name: ``USR1``, ``USR2`` or another of ``runs.signals.SIGNALS``.

        Raises:
            UsageError: it is none that may be sent.
            HostsError: hosts did not answer; on the others it was sent.
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
        """Do something on every host that has a part in this attempt."""
        return each([RunPart(name, spool) for name, spool in self.spools.items() if spool], work)

    def _host(self, name: str) -> Host:
        return self.cluster.carrier(self.record).host(self.cluster, self.id, name)

    def reader(self, host: str) -> Host:
        """A helper that sees the files of one of its hosts."""
        return self.cluster.carrier(self.record).reader(self.cluster, self.id, host)

    def begun(self, progress: Callable[[str], None]) -> Run:
        """The same once its nodes have begun; ``progress`` takes what it waits for."""
        return self.cluster.carrier(self.record).begun(self.cluster, self, progress)

    def verdict(self) -> Verdict | None:
        """How it ended; None while it lives."""
        return self.view().verdict()

    def watched(self, view: RunView) -> Verdict | None:
        """The verdict on the run, which was watched to its end; the project keeps it.

        Args:
            view: It, as its hosts tell it in the end.
        """
        seen = replace(view, watched=self.live).refined()
        local_cache.keep(self.cluster.project, seen)
        return seen.verdict()

    def stopped(self, proofs: Iterable[Proof]) -> Verdict | None:
        """The verdict after a stop with these proofs, which the project keeps; None where no host tells it."""
        hosts = {proof.host for proof in proofs if not proof.error}
        try:
            return self.watched(self.view(hosts)) if hosts else None
        except ClusterddpError:  # lost meanwhile
            return None

    def logs(
        self, selection: Selection | None = None, *, follow: bool = False, **words: Unpack[Words]
    ) -> Iterator[LogLine]:
        """Its lines: the past in order of time, then, with ``follow``, as they come until it ends.

        Args:
            selection: Which lines; all by default.
            follow: Go on while it runs (in place of ``selection.follow``).
            words: In place of a selection: ``rank``, ``host``, ``stream``, ``since``, ``until``, ``grep``, ``tail``.

        Raises:
            UsageError: a word or its value cannot be meant.
        """
        if selection and words:
            raise UsageError(f"{min(words)} beside a selection", remedy="put it into the selection")
        return self._lines(replace(selection or self._selection(words), follow=follow, timed=True))

    def hosts_like(self, pattern: str, said: str) -> list[str]:
        """Those of its hosts, and of the inventory's, that an Ansible pattern matches; errors name who ``said`` it.

        Raises:
            InventoryError: it is none.
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
        """The hosts whose streams a selection asks for."""
        return [name for name in self.spools if selection.hosts is None or name in selection.hosts]

    def tail(self, selection: Selection) -> Streams:
        """What opens a host's stream of the selected lines at a position; a Merge calls it, again after a break."""
        return Streams(self.id, self.attempt, self._spool, self.reader, selection)

    def _spool(self, host: str) -> str:
        """The spool on a host, which may not have answered when the run was looked for."""
        if self.spools[host]:
            return self.spools[host]
        nodes, silent = self.cluster.gather(self.id, {host})
        found = [node["spool"] for node in nodes if node["attempt"] == self.attempt]
        if not found:  # nobody knows whether it will be: whoever follows asks again
            raise UnreachableError(host, "no answer" if silent else f"no part of attempt {self.attempt} is there")
        return str(found[0])

    def wait(self, timeout: float | str | None = None) -> Verdict:
        """Wait until it has ended; how it did.

        Args:
            timeout: Seconds, or a duration such as ``5m``; None: as long as it takes.

        Raises:
            UsageError: the timeout is no duration.
            RunError: it has not ended in that time.
        """
        return wait_for(self, self.cluster.notify, None if timeout is None else _duration("timeout", timeout))

    def stop(
        self, *, grace: float | str = GRACE, reason: str = "by another command", hosts: str | Iterable[str] = ()
    ) -> list[Proof]:
        """End the run on every host (or on ``hosts``), and prove that nothing of it is left.

        Args:
            grace: Seconds, or a duration, between SIGTERM and SIGKILL.
            reason: What the run's record will say.
            hosts: Only these, as ``"gpu00,gpu01"`` or several names.

        Raises:
            UsageError: the grace is no duration.
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
