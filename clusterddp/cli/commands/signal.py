"""``clusterddp signal``: tell a run's workers something by a signal, as schedulers do before they take a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import cluster_options
from clusterddp.cli.output import say
from clusterddp.remote.shared.text.counted import counted

if TYPE_CHECKING:
    from pathlib import Path


@click.command("signal")
@cluster_options
@click.argument("run", shell_complete=completion.runs)
@click.argument("signal", shell_complete=completion.signals)
def command(inventory: Path | None, limit: str | None, run: str, signal: str) -> int:
    """Send SIGNAL (USR1, USR2, …) to every worker of RUN that handles it."""
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - start-up
    from clusterddp.runs.signals import signal_name  # noqa: PLC0415

    name = signal_name(signal)
    with open_cluster(inventory, limit) as cluster:
        found = cluster.find(run, reading=False)
        workers = found.signal(name)
    if not workers:
        say(f"run {found.id} has no live worker; nobody got {name}")
        return 1
    left_out = [worker for worker in workers if worker.why]
    for worker in left_out:
        say(f"rank {worker.rank} ({worker.host}:{worker.local_rank}): not sent, {worker.why}")
    say(f"{found.id}: {name} sent to {len(workers) - len(left_out)} of {counted(len(workers), 'worker')}")
    return int(bool(left_out))
