"""The options of ``clusterddp hosts``; cli/actions/hosts_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli.click_options import cluster_options


@click.command("hosts")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="A list of {name, address, port, user, groups, vars}.")
@click.option("--ssh-config", is_flag=True, help="As blocks for an ssh_config file.")
def command() -> None:
    """List the hosts of the inventory."""
