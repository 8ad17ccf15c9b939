"""``clusterddp hosts``: print the inventory's hosts, after all merging."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from clusterddp.cli.session import open_cluster
from clusterddp.inventory.ssh_blocks import ssh_config_block

if TYPE_CHECKING:
    from pathlib import Path


def act(inventory: Path | None, limit: str | None, *, as_json: bool, ssh_config: bool) -> int:
    """Print the hosts; return the exit code."""
    cluster = open_cluster(inventory, limit)
    if as_json:
        click.echo(json.dumps(cluster.inventory.to_json(), indent=1))
        return 0
    for host in cluster.inventory.hosts:
        if ssh_config:
            click.echo(ssh_config_block(host))
        else:
            user = f"{host.user}@" if host.user else ""
            port = f":{host.port}" if host.port else ""
            click.echo(f"{host.name}\t{user}{host.address}{port}\t{host.role}\t{','.join(host.groups)}")
    return 0
