"""``clusterddp up``: make the cluster ready, show it, remember it for this project."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterddp.cli.options import setting
from clusterddp.cli.output import say
from clusterddp.errors import ClusterddpError, HostKeyError, HostsError, InventoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.api import Cluster
    from clusterddp.project import Project

HOST_LIST = "inventory.yaml"  # in .clusterddp/: hosts that were given as a list


@click.command("up")
@setting("--limit", metavar="PATTERN", help="Only hosts that match this Ansible pattern; remembered.")
@click.option("--accept-new-host-keys", is_flag=True, help="Record unknown host keys; a changed one is always refused.")
@click.argument("inventory", metavar="INVENTORY|HOST,HOST…")
def command(inventory: str, limit: str | None, *, accept_new_host_keys: bool) -> int:
    """Reach every host, check that it can train, show it, and remember the inventory for this project."""
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - start-up
    from clusterddp.cli.up_tables import print_up  # noqa: PLC0415
    from clusterddp.inventory import ansible_cfg_notices  # noqa: PLC0415
    from clusterddp.project import find  # noqa: PLC0415

    project = find()
    with inventory_path(inventory, project) as path, open_cluster(path, limit, accept=accept_new_host_keys) as cluster:
        for notice in ansible_cfg_notices():
            say(notice)
        project.remember_try(path)
        _trust(cluster)
        reports = cluster.up()
        print_up(reports)
        _say_what_is_there(cluster)
        project.remember(path, limit)
    nodes = [report for report in reports if report.ranks]
    ranks = sum(report.nproc for report in nodes)
    spares = f", {len(reports) - len(nodes)} spare" if len(nodes) < len(reports) else ""
    say(f"ready: {len(nodes)} nodes, {ranks} ranks{spares}; remembered {inventory}")
    return 0


def _say_what_is_there(cluster: Cluster) -> None:
    """Live runs of this project, and processes that runs have left: with the command that ends them."""
    found = cluster.list_runs()
    for view in found:
        if view.live and cluster.owner.shares_project(view):
            say(f"run {view.run} of this project is {view.state()}; `clusterddp stop {view.run}` ends it")
    theirs = {view.run for view in found if not cluster.owner.owns(view)}
    for left in cluster.orphans():
        count = len(left.processes)
        what = f"{left.host}: {count} process{'' if count == 1 else 'es'} of run {left.run} without a supervisor"
        pids = ", ".join(str(pid) for pid, _ in left.processes)
        if left.run not in theirs:
            say(f"{what}; {f'`clusterddp stop {left.run}` ends them' if left.known else f'kill them by hand: {pids}'}")


@contextlib.contextmanager
def inventory_path(text: str, project: Project) -> Iterator[Path]:
    """The inventory's file; a host list is written to one of the project's own, which an error puts back.

    Raises:
        InventoryError: there is no such file, and it is no host list.
    """
    path = Path(text)
    if text and path.exists():
        yield path
        return
    if path.suffix in {".yaml", ".yml", ".json", ".ini"} or "/" in text:
        raise InventoryError("there is no such inventory", where=text, remedy="give a file, or hosts as a,b,c")
    from clusterddp.inventory import from_host_list  # noqa: PLC0415 - start-up

    listed = from_host_list(text).encode()
    earlier = project.folder / HOST_LIST
    kept = earlier.read_bytes() if earlier.is_file() else None
    try:
        yield project.write(HOST_LIST, listed)
    except BaseException:
        if kept is None:
            earlier.unlink(missing_ok=True)
        else:
            project.write(HOST_LIST, kept)
        raise


def _trust(cluster: Cluster) -> None:
    """Ask once about all unknown host keys; off a terminal they are an error.

    Raises:
        HostsError, HostError: hosts cannot be reached, or their keys are not trusted.
    """
    errors = [outcome.error for outcome in cluster.connect() if outcome.error]
    unknown = [error for error in errors if isinstance(error, HostKeyError) and error.known_hosts_line]
    if unknown:
        from clusterddp.cli.up_tables import print_keys  # noqa: PLC0415 - start-up

        print_keys(unknown)
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            for error in errors:
                if error not in unknown:
                    say(str(error))
            message = f"unknown host keys: {', '.join(error.host for error in unknown)}"
            raise ClusterddpError(message, remedy="compare the fingerprints, then add --accept-new-host-keys")
        if click.confirm("clusterddp: are these the keys of your hosts?", err=True):
            cluster.trust(unknown)
            errors = [outcome.error for outcome in cluster.connect() if outcome.error]
    if errors:
        raise errors[0] if len(errors) == 1 else HostsError(errors)
