"""``clusterddp shell``: open the login shell of one host, in the environment and folder of a worker."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from clusterddp.cli import interrupts
from clusterddp.cli.choose_host import find_entry
from clusterddp.cli.session import open_cluster
from clusterddp.environments import install
from clusterddp.errors import RunError, UsageError
from clusterddp.launch.answering import workdirs
from clusterddp.shell.command import worker_place
from clusterddp.shell.terminal import run_shell

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.api.cluster import Cluster


def act(inventory: Path | None, host: str, run: str | None, *, bare: bool) -> int:
    """Open the shell; return its exit code."""
    if run and bare:
        raise UsageError("--bare with --run: the one is the login's environment, the other the run's")
    with open_cluster(inventory, None, starts=True) as cluster:
        interrupts.treat_as_ctrl_c(signal.SIGTERM)  # else the terminal would stay as it was set for the shell
        entry = find_entry(cluster, host)
        spool = _spool_path(cluster, run, entry.name) if run else ""
        workdir = workdirs([entry], cluster.project)[entry.name]
        opened = cluster.host(entry.name)
        if entry.environment and not bare and not run:
            install.ensure([opened], cluster.project, cluster.notify, cluster.progress)
        place = None if bare else worker_place(opened, workdir, cluster.project.subfolder)
        return run_shell(opened, place, spool)


def _spool_path(cluster: Cluster, reference: str, host: str) -> str:
    """Return the path of a run's spool on a host; raises RunError if the run has no part there."""
    found = cluster.find(reference)
    if not found.spools.get(host):
        raise RunError(f"run {found.id} has no part on {host}", remedy=f"its hosts are {', '.join(found.spools)}")
    return found.spools[host]
