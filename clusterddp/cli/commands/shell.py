"""The options of ``clusterddp shell``; cli/actions/shell_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import inventory_option


@click.command("shell")
@inventory_option
@click.option("--run", metavar="RUN", shell_complete=completion.runs, help="As the workers of this run have it.")
@click.option("--bare", is_flag=True, help="In the login's own environment and home.")
@click.argument("host", shell_complete=completion.host_name)
def command() -> None:
    """Open a shell on HOST, in the environment and folder that a worker would have there; `~.` hangs up."""
