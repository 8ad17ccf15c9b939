"""A run as its hosts report it, and whom it asks: the cluster (``Site``), and its launcher (``RunLauncher``).

Views and verdicts are imported by the functions that make them: a command that looks at no run loads none.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from clusterddp.errors import ClusterddpError, RunError, RunRemovedError
from clusterddp.hosts.fanout import values
from clusterddp.inventory.patterns import select
from clusterddp.remote.shared.names.host_names import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

    from typing_extensions import Self

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.connections import Connections
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.logs.selection import Selection
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.view.run_view import Reports, RunView
    from clusterddp.runs.view.verdict_lines import Verdict

_log = logging.getLogger("clusterddp")
R = TypeVar("R", bound="RunOnHosts")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which runs hosts report, and in how much detail."""

    reference: str | None = None  # only runs whose ids start with this, or that have this name
    project: str | None = None  # only runs of this project
    # only what a list and a verdict need: no processes, no events except lost output, no output of failed workers
    brief: bool = False


ALL, BRIEF = Wanted(), Wanted(brief=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhook:
    """A URL that receives notices about a run. It is a secret, because anyone who knows it can post there."""

    url: str = field(repr=False)  # receives ``{run, event, text}`` as JSON
    silence: float = 300.0  # seconds without output after which that is reported; 0: never


class Site(Protocol):
    """A cluster as the packages below ``api`` see it: ``api.Cluster``, or hosts that a launcher lends to the doctor."""

    inventory: Inventory
    project: Project
    notify: Callable[[str], None]  # receives notices for the user, a line each
    progress: Callable[[str], None]  # receives the current activity, in a few words
    connections: Connections  # also to hosts that the inventory does not name
    webhook: Webhook | None  # receives notices about the runs that are started, from their hosts where these can
    detached: bool  # whether nobody follows the runs that are started
    launched: RunOnHosts | None  # the run started last; its launcher sets it as soon as something may have started

    def connect(self, entries: Iterable[HostEntry] | None = None) -> list[Outcome[Host]]:
        """Open these hosts, or all; return each one's Host, or its error."""

    def host(self, name: str) -> Host:
        """Return the open host with that name."""

    def launcher_of(self, record: RunRecord) -> RunLauncher:
        """Return the launcher of the run with this record."""

    def describe(
        self, run: str, entries: Sequence[HostEntry], wanted: Wanted, patience: float | None = None
    ) -> list[Outcome[Reports]]:
        """Return what each of these hosts reports of a run, or with an empty ``run`` of all runs; see ``gather``."""


def gather(
    site: Site,
    run: str,
    hosts: Container[str] | None = None,
    wanted: Wanted = ALL,
    *,
    quiet: bool = False,
    patience: float | None = None,
) -> tuple[Reports, list[str]]:
    """Return every node of every run on the hosts that answer, and the names of the hosts that do not.

    ``run``: a prefix of the runs' ids. ``hosts``: only these. ``wanted``: which runs, and how much of them. ``quiet``:
    do not report hosts that do not answer. ``patience``: seconds of silence after which a host counts as not answering.
    Raises HostError or HostsError if no host answers, and the project knows of no such run either.
    """
    return _reports(site, run, _ask(site, run, hosts, wanted, patience), quiet=quiet)


def _ask(
    site: Site, run: str, hosts: Container[str] | None, wanted: Wanted, patience: float | None
) -> list[Outcome[Reports]]:
    """Return what each host, or each of the given ones, reports of a run; arguments as in ``gather``."""
    entries = [entry for entry in site.inventory.run_hosts if hosts is None or entry.name in hosts]
    return site.describe(run, entries, wanted, patience)


def _reports(site: Site, run: str, outcomes: Sequence[Outcome[Reports]], *, quiet: bool) -> tuple[Reports, list[str]]:
    """Return the reports in these outcomes, and the hosts without one; raises as ``gather``."""
    from clusterddp.runs import local_cache  # noqa: PLC0415 - only what asks for runs

    if all(outcome.error for outcome in outcomes) and not local_cache.has_data(site.project, run):
        values(outcomes)  # raises their errors
    silent = {outcome.name: str(outcome.error) for outcome in outcomes if outcome.error}
    for error in () if quiet else silent.values():
        site.connections.report(error)
    return [node for outcome in outcomes for node in outcome.value or ()], list(silent)


class RunLauncher(Protocol):
    """What a launcher does for a run that has been started; launch/launcher.py has all that it does."""

    def begun(self, cluster: Site, run: R, progress: Callable[[str], None]) -> R:
        """Wait until the run's nodes have begun, or it has ended; ``progress`` receives what it waits for.

        Raises ClusterddpError if the run can never begin; nothing is left of it.
        """

    def cancel(self, cluster: Site, run: str, hosts: Sequence[str], *, grace: float, reason: str) -> list[Proof]:
        """End the run on these hosts; return what each found, with a Proof with an error for a host not reached."""

    def reader(self, cluster: Site, run: str, host: str) -> Host:
        """Return a connection that can read the files of a run's host: its output and records."""

    def host(self, cluster: Site, run: str, host: str) -> Host:
        """Return a connection to the host of a live run itself, which sees its workers."""


def current_spools(view: RunView, inventory: Inventory) -> dict[str, str]:
    """Return each host's spool path in the last attempt; an empty path if it did not answer or is still starting."""
    starting = {entry.name for entry in inventory.hosts} & set(view.record.hosts) if view.live else set()
    return view.current | dict.fromkeys(sorted(starting - view.current.keys()), "")


def unheard_hosts(view: RunView) -> dict[int, tuple[str, ...]]:
    """Return, for each attempt before the last one, the hosts of its plan that did not answer."""
    planned: dict[int, set[str]] = {}
    for node in view.earlier:
        planned.setdefault(node.attempt, set()).update(node.record.hosts)
    return {attempt: tuple(name for name in view.unreachable if name in hosts) for attempt, hosts in planned.items()}


@dataclass(repr=False)
class RunOnHosts:
    """One run, live or past: what identifies it, and how its hosts see it."""

    cluster: Site  # the cluster whose hosts are asked
    id: str  # the run's id
    attempt: int  # the attempt that the other fields describe: the last one, unless ``of_attempt`` chose another
    # that attempt's folder on each of its hosts; empty for a host that did not answer or is only starting
    spools: Mapping[str, str]
    record: RunRecord  # what the run recorded about itself when it started
    # every attempt's spools; empty for a run that has just been started
    attempts: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    unheard: Mapping[int, Sequence[str]] = field(default_factory=dict)  # earlier attempt → its hosts without an answer
    live: bool = True  # whether it was live when it was looked up
    submitted: tuple[str, ...] = ()  # the ids of all runs submitted together, if this one was just submitted
    notified: bool = False  # whether its hosts notify the webhook that it was started with
    # values by name of its secrets that its hosts must receive when they begin
    secrets: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        name = f" ({self.record.name})" if self.record.name else ""
        return f"<Run {self.id}{name}, attempt {self.attempt} on {folded_names(list(self.spools)) or 'no host'}>"

    def of_attempt(self, number: int) -> Self:
        """Return the same run as of one attempt, whose lines ``logs`` then returns.

        Raises:
            RunError: No host that answers knows of such an attempt.
        """
        attempts = {self.attempt: self.spools, **self.attempts}
        if number not in attempts:
            numbers = ", ".join(map(str, sorted(attempts)))
            raise RunError(f"run {self.id} has no attempt {number}", remedy=f"its attempts: {numbers}")
        spools = {**attempts[number], **dict.fromkeys(self.unheard.get(number, ()), "")}
        return replace(self, attempt=number, spools=spools, attempts=attempts)

    @property
    def hosts(self) -> set[str]:
        """Every host that takes part in the run, took part in it, or may join it."""
        earlier = (name for spools in self.attempts.values() for name in spools)
        return {*self.spools, *earlier, *self.record.hosts, *self.record.spares}

    def at(self, view: RunView) -> Self:
        """Return the same run as of the last attempt of a view."""
        spools = current_spools(view, self.cluster.inventory)
        # A view in which neither a host nor the project knows the run has an empty record: ours stays.
        record = view.record if view.nodes or view.local_record else self.record
        attempts, unheard = view.spools, unheard_hosts(view)
        return replace(self, attempt=view.attempt, spools=spools, record=record, attempts=attempts, unheard=unheard)

    def view(
        self,
        hosts: Container[str] | None = None,
        *,
        brief: bool = False,
        quiet: bool = False,
        patience: float | None = None,
        without: Collection[str] = (),
    ) -> RunView:
        """Return the run as all its hosts, or the given ones, report it now.

        Hosts that have joined it since it was looked up are asked too, as far as the inventory has them.

        Args:
            hosts: Ask only these.
            brief: Get its state alone, without processes and evidence.
            quiet: Do not report hosts that do not answer.
            patience: Seconds of silence after which a host counts as not answering; None: as long as a connection may
                take.
            without: Hosts that are not asked unless there are no others.

        Raises:
            RunError: No host that answers knows the run; RunRemovedError if all answer.
            HostError, HostsError: None of its hosts answers.
        """
        wanted, known = Wanted(brief=brief), self.hosts
        outcomes = _ask(self.cluster, self.id, hosts or known.difference(without) or known, wanted, patience)
        view = self._view_of(outcomes, quiet=quiet)
        if hosts or view.job:  # a job's nodes are not asked one by one
            return view
        reachable = {entry.name for entry in self.cluster.inventory.run_hosts}
        joined = reachable.intersection(view.record.hosts).difference(known, without)
        if not joined:
            return view
        more = _ask(self.cluster, self.id, joined, wanted, patience)
        return self._view_of([*outcomes, *more], quiet=quiet)

    def _view_of(self, outcomes: Sequence[Outcome[Reports]], *, quiet: bool) -> RunView:
        """Return the run as hosts have reported it; raises as ``view``."""
        from clusterddp.runs import local_cache  # noqa: PLC0415 - only what asks for runs
        from clusterddp.runs.view.run_view import run_views  # noqa: PLC0415 - likewise

        reports, silent = _reports(self.cluster, self.id, outcomes, quiet=quiet)
        kept = local_cache.finished_runs(self.cluster.project, self.id)
        for view in run_views(reports, silent, kept, wanted=self.id):
            if view.run == self.id:
                return view
        if not silent:
            raise RunRemovedError(f"run {self.id} was removed from its hosts")
        raise RunError(f"run {self.id} is on no host that answers")

    def detailed(self, brief: RunView) -> RunView:
        """Add processes and evidence to a brief view; hosts that did not answer for it are not asked again."""
        hosts = {node.host for node in (*brief.nodes, *brief.earlier, *brief.spares)}
        if not hosts:
            return brief
        view = self.view(hosts)
        for copy in view.other_copies:
            reported = ", ".join(copy.reported)
            _log.debug(
                "%s: a verdict of attempt %d, having heard %s: %s", copy.writer, copy.attempt, reported, copy.line
            )
        return replace(view, silent=tuple(dict.fromkeys((*view.silent, *brief.silent))))

    def status(self, patience: float | None = None) -> dict[str, Any]:
        """Return the status object of docs/labels-and-json.md; ``patience`` as in ``view``."""
        return self.view(quiet=patience is not None, patience=patience).to_json()

    def reader(self, host: str) -> Host:
        """Return a connection that can read the files of one of its hosts."""
        return self.cluster.launcher_of(self.record).reader(self.cluster, self.id, host)

    def begun(self, progress: Callable[[str], None]) -> Self:
        """Return the same run once its nodes have begun; ``progress`` receives what it waits for."""
        return self.cluster.launcher_of(self.record).begun(self.cluster, self, progress)

    def hosts_like(self, pattern: str, origin: str) -> list[str]:
        """Return the hosts of the run and the inventory that an Ansible pattern matches.

        ``origin`` names where the pattern came from, for errors.

        Raises:
            InventoryError: The pattern is invalid.
        """
        return self._matching(pattern) or list(self.cluster.inventory.matching(pattern, origin))

    def _matching(self, pattern: str) -> list[str]:
        """Return what ``hosts_like`` does; nothing where no host matches."""
        inventory = self.cluster.inventory
        names = dict.fromkeys([*(entry.name for entry in inventory.hosts), *self.hosts])
        return list(select(pattern, list(names), inventory.groups).hosts)

    def selected(self, selection: Selection) -> list[str]:
        """Return the hosts whose streams a selection needs; a later attempt may have none of them."""
        hosts = None if selection.pattern is None else self._matching(selection.pattern)
        return [name for name in self.spools if hosts is None or name in hosts]

    def verdict(self) -> Verdict | None:
        """Return how the run ended; None while it is live."""
        return self.view().verdict()

    def watched(self, view: RunView) -> Verdict | None:
        """Return the verdict on a run watched to its end, and save it in the project; ``view`` is its final view."""
        from clusterddp.runs import local_cache  # noqa: PLC0415 - only what asks for runs

        final = replace(view, watched=self.live).refined()
        local_cache.save_verdict(self.cluster.project, final)
        return final.verdict()

    def stopped(self, proofs: Iterable[Proof]) -> Verdict | None:
        """Return the verdict after a stop with these proofs, and save it; None if no host reports the run."""
        hosts = {proof.host for proof in proofs if not proof.error}
        try:
            return self.watched(self.view(hosts)) if hosts else None
        except ClusterddpError:  # lost meanwhile
            return None
