"""``clusterddp status``: one run, host by host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from clusterddp.cli import completion
from clusterddp.cli.options import cluster_options

if TYPE_CHECKING:
    from pathlib import Path


@click.command("status")
@cluster_options
@click.option("--stacks", is_flag=True, help="Where each worker is now: its Python stack.")
@click.option("--json", "as_json", is_flag=True, help="One object, by the contract.")
@click.argument("run", required=False, shell_complete=completion.runs)
def command(inventory: Path | None, limit: str | None, run: str | None, *, stacks: bool, as_json: bool) -> int:
    """Show a run: the live one, else the last; or RUN, by id, prefix or name."""
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - start-up

    with open_cluster(inventory, limit) as cluster:
        view = cluster.find_view(run)
        found = cluster.attach(view).stacks() if stacks and view.live else []
        if as_json:
            more = {"stacks": [stack.to_json() for stack in found]} if stacks else {}
            click.echo(json.dumps({**view.to_json(), **more}, indent=1))
        else:
            from clusterddp.cli.run_tables import print_stacks, print_status  # noqa: PLC0415

            print_status(view)
            if stacks:
                print_stacks(found)
    return 0
