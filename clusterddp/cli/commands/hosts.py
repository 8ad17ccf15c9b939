"""The options of ``clusterddp hosts``; cli/actions/hosts_action.py holds what it does."""

from __future__ import annotations

from typing import Any

import click

from clusterddp.cli.click_options import cluster_options


@click.command("hosts")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="A list of {name, address, port, user, groups, vars}.")
@click.option("--ssh-config", is_flag=True, help="As blocks for an ssh_config file.")
def command(**given: Any) -> int:
    """List the hosts of the inventory."""
    from clusterddp.cli.actions.hosts_action import act  # noqa: PLC0415 - --help and Tab need the options alone

    return act(**given)
