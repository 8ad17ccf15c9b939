"""What runs leave on the hosts of a cluster: look at it, and remove it; live runs are stopped first."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.api import find_runs
from clusterddp.environments import removal
from clusterddp.errors import UnreachableError
from clusterddp.hosts.fanout import HostGroup
from clusterddp.launch import launcher
from clusterddp.runs import cleanup, holdings, named_workdirs
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.environments.removal import EnvironmentFound
    from clusterddp.runs.holdings import EverythingRemoved, Holdings
    from clusterddp.runs.named_workdirs import WorkdirBeside
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.run import Run
    from clusterddp.runs.run_on_hosts import Site
    from clusterddp.runs.view.run_view import RunView


def down(
    site: Site,
    views: Iterable[RunView] | None,
    *,
    purge: bool,
    workdirs: Sequence[WorkdirBeside],
    environments: Sequence[EnvironmentFound],
    grace: float,
) -> tuple[dict[str, list[Proof]], list[cleanup.Cleaned]]:
    """Stop runs, and remove what is old from every host; see ``Cluster.down``."""
    hosts = _hosts_with_files(site)
    ours = find_runs.owner(site.project)
    runs = [view for view in unended_runs(site) if ours.shares_project(view)] if views is None else views
    proofs = {view.run: _stop(find_runs.attach(site, view), grace) for view in runs}
    folders_removed = named_workdirs.remove(hosts, site.project.workdir, workdirs, list(proofs))
    removed = removal.remove(hosts, environments)
    cleaned = [
        replace(cleaned, named_workdirs=folders_removed.get(cleaned.host), environments=removed.get(cleaned.host))
        for one in launcher.launchers(site)
        for cleaned in cleanup.clean(
            HostGroup(one.hosts_with_files(site), site.connections.open),
            site.project.known_id,
            one.clean_operation,
            purge=purge,
        )
    ]
    if purge:  # the helpers' own code may be gone
        site.connections.close_hosts()
    _stop_keeping(site)
    return proofs, cleaned


def _stop(run: Run, grace: float) -> list[Proof]:
    """Stop a run, and save its verdict in the project: its hosts may know it no more when others ask for it."""
    proofs = run.stop(grace=grace, reason="by `down`")
    run.stopped(proofs)
    return proofs


def _stop_keeping(site: Site) -> None:
    """End the connections that `up --keep` has made to these hosts."""
    ended = site.connections.stop_keeping(entry for entry in site.inventory.hosts if entry.role != "none")
    if names := [name for name, wrong in ended.items() if not wrong]:
        site.notify(f"{folded_names(names)}: the kept connection ends with the last command that uses it")
    for name, wrong in ended.items():
        if wrong:
            site.notify(f"{name}: the kept connection is not used any more, but did not answer: {wrong}")


def workdirs_beside(site: Site) -> list[WorkdirBeside]:
    """Return the folders beside the project's workdir on the hosts that answer."""
    return named_workdirs.list_workdirs(_hosts_with_files(site), site.project, site.connections.report)


def environments(site: Site, *, last_too: bool) -> list[EnvironmentFound]:
    """Return the environments installed from lock files on the hosts that answer; see ``Cluster.environments``."""
    return removal.list_environments(
        _hosts_with_files(site), site.project.known_id, time.time_ns(), site.connections.report, last_too=last_too
    )


def warm_servers(site: Site) -> dict[str, int]:
    """Return how many bytes of memory the warm server of each host takes, of hosts that answer, by host name."""
    entries = [entry for entry in site.inventory.run_hosts if entry.keeps_warm]
    return cleanup.preload_server_memory(HostGroup(entries, site.connections.open))


def held(site: Site) -> list[Holdings]:
    """Return what each host holds of ours in this account, of all projects."""
    return holdings.list_holdings(_hosts_with_files(site), site.project)


def _hosts_with_files(site: Site) -> HostGroup:
    return HostGroup(launcher.hosts_with_files(site), site.connections.open)


def unended_runs(site: Site) -> list[RunView]:
    """Return the runs of all projects that are not over on some host, or whose processes are still there."""
    with_processes = {found.run for found in orphans(site)}
    return [view for view in find_runs.list_runs(site) if view.goes_on or view.run in with_processes]


def orphans(site: Site) -> list[cleanup.Orphans]:
    """Return the processes of this account, on the hosts that answer, of runs whose supervisor is gone."""
    outcomes = cleanup.orphans(_hosts_with_files(site))
    for outcome in outcomes:
        if outcome.error and not isinstance(outcome.error, UnreachableError):  # listing the runs reports those
            site.notify(f"processes of lost runs are not known: {outcome.error}")
    return [found for outcome in outcomes for found in outcome.value or ()]


def remove_everything(site: Site, shown: Sequence[Holdings]) -> list[EverythingRemoved]:
    """Remove all that hosts hold of ours in this account; see ``Cluster.remove_everything``."""
    holdings.refuse_live(shown)
    removed = holdings.remove(_hosts_with_files(site), site.project, shown)
    site.connections.close_hosts()  # the helpers' own code is gone
    _stop_keeping(site)
    return removed
