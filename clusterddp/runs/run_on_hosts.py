"""A run as its hosts report it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from clusterddp.errors import ClusterddpError, RunError
from clusterddp.hosts.fanout import values
from clusterddp.remote.shared.names.host_names import folded_names
from clusterddp.runs import local_cache
from clusterddp.runs.site import ALL, Wanted
from clusterddp.runs.view.run_view import Reports, RunView, run_views

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from typing_extensions import Self

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import Inventory
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.site import Site
    from clusterddp.runs.view.verdict_lines import Verdict

_log = logging.getLogger("clusterddp")
R = TypeVar("R", bound="RunOnHosts")


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
    inventory = site.inventory
    entries = [entry for entry in inventory.run_hosts if hosts is None or entry.name in hosts]
    outcomes = site.describe(run, entries, wanted, patience)
    if all(outcome.error for outcome in outcomes) and not local_cache.has_data(site.project, run):
        values(outcomes)  # raises their errors
    silent = {outcome.name: str(outcome.error) for outcome in outcomes if outcome.error}
    for error in () if quiet else silent.values():
        site.notify(error)
    return [node for outcome in outcomes for node in outcome.value or ()], list(silent)


def current_spools(view: RunView, inventory: Inventory) -> dict[str, str]:
    """Return the last attempt's spool path by host; empty for a host that did not answer or is still starting."""
    starting = {entry.name for entry in inventory.hosts} & set(view.record.hosts) if view.live else set()
    return view.current | dict.fromkeys(sorted(starting - view.current.keys()), "")


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
    live: bool = True  # whether it was live when it was looked up
    submitted: tuple[str, ...] = ()  # the ids of all runs submitted together, if this one was just submitted
    notified: bool = False  # whether its hosts notify the webhook that it was started with
    # values by name of its secrets that its hosts must receive when they begin
    secrets: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        name = f" ({self.record.name})" if self.record.name else ""
        return f"<Run {self.id}{name}, attempt {self.attempt} on {folded_names(list(self.spools)) or 'no host'}>"

    def of_attempt(self, number: int) -> Self:
        """Return the same run as of one attempt, whose lines ``logs`` and ``tail`` then return.

        Raises:
            RunError: No host that answers knows of such an attempt.
        """
        attempts = {self.attempt: self.spools, **self.attempts}
        if number not in attempts:
            numbers = ", ".join(map(str, sorted(attempts)))
            raise RunError(f"run {self.id} has no attempt {number}", remedy=f"its attempts: {numbers}")
        return replace(self, attempt=number, spools=attempts[number], attempts=attempts)

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
        reports, silent = gather(self.cluster, self.id, names, wanted, quiet=quiet, patience=patience)
        for view in run_views(reports, silent, local_cache.finished_runs(self.cluster.project, self.id)):
            if view.run == self.id:
                return view
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

    def verdict(self) -> Verdict | None:
        """Return how the run ended; None while it is live."""
        return self.view().verdict()

    def watched(self, view: RunView) -> Verdict | None:
        """Return the verdict on a run watched to its end, and save it in the project; ``view`` is its final view."""
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
