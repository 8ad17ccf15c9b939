"""Find the runs that an argument refers to, where the name of an array means all of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.errors import RunError
from clusterddp.runs.choose import array_runs
from clusterddp.runs.node_answers import Wanted

if TYPE_CHECKING:
    from clusterddp.api.cluster import Cluster, Run


def runs_meant(cluster: Cluster, reference: str, *, reading: bool) -> list[Run]:
    """Return the run that a reference means, or the runs of the array of that name, the last first; raises RunError."""
    try:
        return [cluster.find(reference, reading=reading)]
    except RunError:
        found = array_runs(cluster.list_runs(Wanted(reference=reference, brief=True)), reference)
        mine = [view for view in found if reading or (cluster.owner.owns(view) and view.live)]
        if not mine:
            raise
        return [cluster.attach(view) for view in reversed(mine)]  # else Slurm would begin one in place of each
