"""The options of ``clusterddp signal``; cli/actions/signal_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import cluster_options


@click.command("signal")
@cluster_options
@click.argument("run", shell_complete=completion.runs)
@click.argument("signal", shell_complete=completion.signals)
def command() -> None:
    """Send SIGNAL (USR1, USR2, …) to every worker of RUN that handles it."""
