"""The options of ``clusterddp forward``; cli/actions/forward_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import Checked, inventory_option
from clusterddp.shell.forward import forward_spec


@click.command("forward")
@inventory_option
@click.option("--run", metavar="RUN", shell_complete=completion.runs, help="Whose ranks are meant.")
@click.argument("ports", nargs=-1, required=True, type=Checked(forward_spec), metavar="[RANK|HOST:]PORT…")
def command() -> None:
    """Bring ports of hosts to this machine until Ctrl-C: of HOST, of the host of RANK, else of the first node."""
