"""``clusterddp hosts``: what the inventory says, after all merging."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from clusterddp.cli.click_options import cluster_options

if TYPE_CHECKING:
    from pathlib import Path


@click.command("hosts")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="A list of {name, address, port, user, groups, vars}.")
@click.option("--ssh-config", is_flag=True, help="As blocks for an ssh_config file.")
def command(inventory: Path | None, limit: str | None, *, as_json: bool, ssh_config: bool) -> int:
    """List the hosts of the inventory."""
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - start-up
    from clusterddp.hosts.ssh.blocks import block  # noqa: PLC0415

    cluster = open_cluster(inventory, limit)
    if as_json:
        click.echo(json.dumps(cluster.inventory.to_json(), indent=1))
        return 0
    for host in cluster.inventory.hosts:
        if ssh_config:
            click.echo(block(host))
        else:
            user = f"{host.user}@" if host.user else ""
            port = f":{host.port}" if host.port else ""
            click.echo(f"{host.name}\t{user}{host.address}{port}\t{host.role}\t{','.join(host.groups)}")
    return 0
