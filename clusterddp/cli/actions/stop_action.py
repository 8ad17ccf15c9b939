"""``clusterddp stop``: end runs, and prove that nothing of them is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.cli.arrays import find_referenced_runs
from clusterddp.cli.output import report_proofs, report_unasked
from clusterddp.cli.session import open_cluster
from clusterddp.errors import RunError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.api.cluster import Cluster
    from clusterddp.runs.run import Run


def act(inventory: Path | None, limit: str | None, runs: tuple[str, ...], *, everything: bool, grace: float) -> int:
    """Stop the runs and print the proofs; return the exit code."""
    if runs and everything:
        raise UsageError("runs beside --all: all of this project are stopped", remedy="leave out one of the two")
    with open_cluster(inventory, limit) as cluster:
        return max([_stop(run, grace) for run in _find_runs(cluster, runs, everything=everything)])


def _stop(run: Run, grace: float) -> int:
    """Stop one run, ``grace`` seconds between SIGTERM and SIGKILL; print the proofs and return the exit code."""
    proofs = run.stop(grace=grace)
    code = report_proofs(run.id, proofs)
    report_unasked(run, proofs)
    run.stopped(proofs)
    return code


def _find_runs(cluster: Cluster, references: tuple[str, ...], *, everything: bool) -> list[Run]:
    """Return the runs named, else all of this project that go on anywhere (``everything``), else the only live one."""
    if references:
        return [run for reference in references for run in find_referenced_runs(cluster, reference, reading=False)]
    if not everything:
        return [cluster.find(reading=False)]
    ours = [view for view in cluster.list_runs() if cluster.owner.shares_project(view)]
    found = [view for view in ours if view.goes_on]
    if not found:
        raise RunError("no run of this project is live on these hosts")
    return [cluster.attach(view) for view in found]
