"""What a cluster does besides runs: bring the project's code to its hosts, and run commands on them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import IO, TYPE_CHECKING

from clusterddp.hosts.fanout import HostGroup
from clusterddp.launch import answering

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.hosts.client import Host
    from clusterddp.runs.run_on_hosts import Site
    from clusterddp.shell import Command, Execution
    from clusterddp.sync.result import SyncResult


def reached(site: Site) -> list[Host]:
    """Return every node and spare, open; see ``Cluster.reached``."""
    entries = site.inventory.run_hosts or site.inventory.submitting
    return answering.require_all(site.connections.open_all(entries, site.progress, writes=True), site.inventory)


def install(site: Site, hosts: Iterable[Host], spread: str = "auto") -> None:
    """Install the environment of a lock file on the hosts whose inventory names one; they then use its Python."""
    from clusterddp.environments import install as environments  # noqa: PLC0415 - only what starts programs installs

    environments.ensure([*hosts], site.project, site.notify, site.progress, spread=spread)


def sync(site: Site, *, dry: bool, limit: int | None, rate: int | None, spread: str, take: str | None) -> SyncResult:
    """Bring the project to every node and spare; see ``Cluster.sync``."""
    answering.run_hosts(site.inventory)
    with ThreadPoolExecutor(1) as pool:  # the project is looked at while hosts are waited for
        scanning = pool.submit(lambda: import_module("clusterddp.launch.code_on_hosts").scan(site.project, limit))
        hosts = reached(site)
        site.progress("looking at the project")
        tree = scanning.result()
    from clusterddp.launch import code_on_hosts  # noqa: PLC0415 - imported by now, while hosts were waited for

    return code_on_hosts.sync_or_preview(
        hosts, site.project, site.notify, site.progress, tree, spread=spread, rate=rate, take=take, dry=dry
    )


def execution(site: Site, command: Command, given: IO[bytes] | None, *, sync: bool) -> Execution:
    """Begin a command on every node and spare as soon as it answers; see ``Cluster.execution``."""
    from clusterddp.shell import Execution  # noqa: PLC0415 - only for commands

    entries = answering.run_hosts(site.inventory)
    folders = answering.workdirs(entries, site.project)
    reach_first = sync or (not command.bare and any(entry.environment for entry in entries))
    hosts = [outcome.value for outcome in site.connect(entries) if outcome.value] if reach_first else []
    if reach_first and not command.bare:
        install(site, hosts)
    if sync:
        from clusterddp.launch import code_on_hosts  # noqa: PLC0415 - only with sync

        folders.update(code_on_hosts.sync_code(hosts, site.project, site.notify, site.progress).workdirs)
    group = HostGroup(entries, site.connections.open)
    return Execution(group, command, workdirs=folders, subfolder=site.project.subfolder, given=given)
