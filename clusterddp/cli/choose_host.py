"""Find the host that a user names: by its name, or by a rank that it holds."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from clusterddp.errors import RunError, UsageError

if TYPE_CHECKING:
    from clusterddp.api.cluster import Cluster
    from clusterddp.inventory import HostEntry


def find_entry(cluster: Cluster, name: str) -> HostEntry:
    """Return the inventory's entry of the host of that name; raises UsageError."""
    entry = next((host for host in cluster.inventory.hosts if host.name == name), None)
    if entry is None:
        near = get_close_matches(name, [host.name for host in cluster.inventory.hosts], 1)
        raise UsageError(f"{name!r} is no host of the inventory", remedy=f"did you mean {near[0]}?" if near else "")
    if entry.role == "none":
        raise UsageError(f"{name} has clusterddp_role none, so it is never touched", remedy="give it another role")
    return entry


def host_of_rank(cluster: Cluster, rank: int, run: str | None) -> str:
    """Return the host that holds a rank of a run: of ``run``, else of the live one, else of the last."""
    run_found = cluster.find(run)
    hosts = run_found.view().hosts()
    host = next((host.name for host in hosts if rank in host.ranks), None)
    if host is None:
        ranks = sorted(one for host in hosts for one in host.ranks)
        remedy = f"its ranks are 0 to {ranks[-1]}" if ranks else "no worker of it has started yet"
        raise RunError(f"run {run_found.id} has no rank {rank}", remedy=remedy)
    return host
