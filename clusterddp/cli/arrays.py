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
    """Return the run of an id, prefix or name, or all runs of the array of that name, the last first.

    ``reading``: ended runs and those of other users count too. Raises RunError if there is none.
    """
    try:
        return [cluster.find(reference, reading=reading)]
    except RunError:
        views = array_runs(cluster.list_runs(Wanted(reference=reference, brief=True)), reference)
        usable = [view for view in views if reading or (cluster.owner.owns(view) and view.live)]
        if not usable:
            raise
        return [
            cluster.attach(view) for view in reversed(usable)
        ]  # else Slurm would start the next for each one stopped
