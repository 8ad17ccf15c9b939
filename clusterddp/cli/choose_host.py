"""Find the host that a user names: by its name, or by a rank that it holds."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError

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
    return cluster.find(run).view().holders([rank])[rank]
