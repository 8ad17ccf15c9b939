"""``clusterddp runs``: the runs that the hosts know of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from clusterddp.cli.options import cluster_options

if TYPE_CHECKING:
    from pathlib import Path


@click.command("runs")
@cluster_options
@click.option("--all", "everything", is_flag=True, help="Other projects' runs too.")
@click.option("--json", "as_json", is_flag=True, help="One list of objects.")
def command(inventory: Path | None, limit: str | None, *, everything: bool, as_json: bool) -> int:
    """List runs, the newest last; by default this project's."""
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - start-up

    with open_cluster(inventory, limit) as cluster:
        found = cluster.list_runs()
        if not everything:
            found = [view for view in found if view.record.get("project") == cluster.project.known_id]
        if as_json:
            click.echo(json.dumps([view.to_json(hosts=False) for view in found], indent=1))
        elif found:
            from clusterddp.cli.tables import print_runs  # noqa: PLC0415

            print_runs(found)
    return 0
