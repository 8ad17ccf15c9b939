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
    workdirs = query.run.record.workdirs if query.run else {}
    outcomes = site.connect(_meant(site, query))
    found = [
        Origin(
            host=one.value,
            workdir=workdirs.get(one.name) or one.value.entry.workdir or site.project.workdir,
            path=query.path or "",
            run=query.run.run if query.run else "",
        )
        for one in outcomes
        if one.value
    ]
    if not found:
        fanout.values(outcomes)
    return found, [one.error for one in outcomes if one.error]


def _meant(site: Site, query: FileQuery) -> Sequence[HostEntry]:
    """Return the hosts that are meant: for a run, only those that took part."""
    ranked = [entry for entry in query.entries if query.names is None or entry.name in query.names]
    if query.run is None:
        return ranked if query.entries else answering.nodes(site.inventory)
    meant = [entry for entry in ranked if entry.name in query.run.record.workdirs]
    if not meant:
        raise RunError(f"run {query.run.run} has no host among these", remedy="see `clusterddp status`")
    return meant
