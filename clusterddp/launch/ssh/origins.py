"""Where the files of runs are that hosts of the inventory hold, for ``pull``: each host reads its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.errors import RunError
from clusterddp.hosts import fanout
from clusterddp.launch import answering
from clusterddp.sync.transfer.collect import Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.errors import ClusterddpError
    from clusterddp.inventory import HostEntry
    from clusterddp.launch.launcher import FileQuery
    from clusterddp.runs.run_on_hosts import Site


def origins(site: Site, query: FileQuery) -> tuple[list[Origin], list[ClusterddpError]]:
    """Return where the files are, and the errors of hosts that do not answer."""
    workdirs = query.workdirs if query.run else {}
    outcomes = site.connect(_hosts_of(site, query))
    found = [
        Origin(
            host=outcome.value,
            workdir=workdirs.get(outcome.name) or outcome.value.entry.workdir or site.project.workdir,
            path=query.path or "",
            run=query.run.run if query.run else "",
        )
        for outcome in outcomes
        if outcome.value
    ]
    if not found:
        fanout.values(outcomes)
    return found, [outcome.error for outcome in outcomes if outcome.error]


def _hosts_of(site: Site, query: FileQuery) -> Sequence[HostEntry]:
    """Return the hosts that the query selects: for a run, only those that took part."""
    with_ranks = [entry for entry in query.entries if query.names is None or entry.name in query.names]
    if query.run is None:
        return with_ranks if query.entries else answering.nodes(site.inventory)
    names = {*query.workdirs, *query.run.record.hosts}
    participants = [entry for entry in with_ranks if entry.name in names]
    if not participants:
        raise RunError(f"run {query.run.run} has no host among these", remedy="see `clusterddp status`")
    return participants
