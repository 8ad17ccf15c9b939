"""The options of ``clusterddp wait``; cli/actions/wait_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import cluster_options


@click.command("wait")
@cluster_options
@click.argument("runs", nargs=-1, metavar="[RUN…]", shell_complete=completion.runs)
def command() -> None:
    """Wait for the only live run (or the last), or for the runs named; the highest of their codes."""
