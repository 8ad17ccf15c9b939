"""``clusterddp shell``: the login shell of one host, in the environment and folder that a worker has there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from clusterddp.cli import completion
from clusterddp.cli.choose_host import entry_of
from clusterddp.cli.click_options import inventory_option
from clusterddp.errors import RunError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.api.cluster import Cluster


@click.command("shell")
@inventory_option
@click.option("--run", metavar="RUN", shell_complete=completion.runs, help="As the workers of this run have it.")
@click.option("--bare", is_flag=True, help="In the login's own environment and home.")
@click.argument("host", shell_complete=completion.hosts)
def command(inventory: Path | None, host: str, run: str | None, *, bare: bool) -> int:
    """Open a shell on HOST, in the environment and folder that a worker would have there; `~.` hangs up."""
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - start-up
    from clusterddp.launch.answering import workdirs  # noqa: PLC0415
    from clusterddp.shell import Command  # noqa: PLC0415
    from clusterddp.shell.terminal import run_shell  # noqa: PLC0415

    if run and bare:
        raise UsageError("--bare with --run: the one is the login's environment, the other the run's")
    with open_cluster(inventory, None, starts=True) as cluster:
        entry = entry_of(cluster, host)
        spool = _spool(cluster, run, entry.name) if run else ""
        where = workdirs([entry], cluster.project)[entry.name]
        opened = cluster.host(entry.name)
        if entry.environment and not bare and not run:
            from clusterddp.environments import install  # noqa: PLC0415 - start-up

            install.ensure([opened], cluster.project, cluster.notify, cluster.progress)
        asked = Command(shell="", bare=bare).args(opened.entry, where, cluster.project.subfolder)
        return run_shell(opened, {**asked, "spool": spool})


def _spool(cluster: Cluster, reference: str, host: str) -> str:
    """The folder of a run on a host.

    Raises:
        RunError: it has none there.
    """
    found = cluster.find(reference)
    if not found.spools.get(host):
        raise RunError(f"run {found.id} has no part on {host}", remedy=f"its hosts are {', '.join(found.spools)}")
    return found.spools[host]
