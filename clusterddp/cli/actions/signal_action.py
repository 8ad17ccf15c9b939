"""``clusterddp signal``: send a signal to a run's workers, as schedulers do before they take a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.cli.output import say
from clusterddp.cli.session import open_cluster
from clusterddp.remote.shared.text.counted import counted
from clusterddp.runs.signals import signal_name

if TYPE_CHECKING:
    from pathlib import Path


def act(inventory: Path | None, limit: str | None, run: str, signal: str) -> int:
    """Send the signal and report it; return the exit code."""
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
