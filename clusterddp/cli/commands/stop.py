"""``clusterddp stop``: end runs, and prove that nothing of them is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import DURATION, cluster_options, setting
from clusterddp.cli.output import report
from clusterddp.errors import RunError
from clusterddp.remote.shared.run.node_env import GRACE

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.api.cluster import Cluster, Run


@click.command("stop")
@cluster_options
@click.option("--all", "everything", is_flag=True, help="Every live run of this project.")
@setting("--grace", type=DURATION, default=GRACE, help="Time between SIGTERM and SIGKILL (30s).")
@click.argument("runs", nargs=-1, metavar="[RUN…]", shell_complete=completion.runs)
def command(inventory: Path | None, limit: str | None, runs: tuple[str, ...], *, everything: bool, grace: float) -> int:
    """Stop the only live run, or the runs named."""
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - start-up

    with open_cluster(inventory, limit) as cluster:
        return max([_stop(run, grace) for run in _chosen(cluster, runs, everything=everything)])


def _stop(run: Run, grace: float) -> int:
    proofs = run.stop(grace=grace)
    code = report(run.id, proofs)
    run.stopped(proofs)
    return code


def _chosen(cluster: Cluster, references: tuple[str, ...], *, everything: bool) -> list[Run]:
    if references:
        from clusterddp.cli.arrays import runs_meant  # noqa: PLC0415 - start-up

        return [run for reference in references for run in runs_meant(cluster, reference, reading=False)]
    if not everything:
        return [cluster.find(reading=False)]
    live = [view for view in cluster.list_runs() if view.live and cluster.owner.shares_project(view)]
    if not live:
        raise RunError("no run of this project is live on these hosts")
    return [cluster.attach(view) for view in live]
