"""Find the runs that an argument refers to, where the name of an array means all of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.errors import RunError
from clusterddp.runs.choose import array_runs
from clusterddp.runs.run_on_hosts import Wanted

if TYPE_CHECKING:
    from clusterddp.api.cluster import Cluster
    from clusterddp.runs.run import Run


def find_referenced_runs(cluster: Cluster, reference: str, *, reading: bool) -> list[Run]:
    """Return the run of an id, prefix or name, or all runs of the requester's array of that name, the last first.

    ``reading``: ended runs count too, and another user's array if the requester has none. Raises RunError if none does.
    """
    try:
        return [cluster.find(reference, reading=reading)]
    except RunError:
        views = cluster.list_runs(Wanted(reference=reference, brief=True))
        own = array_runs([view for view in views if cluster.owner.owns(view)], reference)
        usable = own or array_runs(views, reference) if reading else [view for view in own if view.live]
        if not usable:
            raise
        return [
            cluster.attach(view) for view in reversed(usable)
        ]  # else Slurm would start the next for each one stopped
