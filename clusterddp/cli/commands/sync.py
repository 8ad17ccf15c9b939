"""The options of ``clusterddp sync``; cli/actions/sync_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli.click_options import SIZE, cluster_options
from clusterddp.cli.run_options import run_option


@click.command("sync")
@cluster_options
@click.option("--dry-run", is_flag=True, help="Say what would change; change nothing.")
@run_option("sync_limit")
@click.option("--rate", type=SIZE, metavar="SIZE", help="Send at most so much a second, to all hosts together (100MB).")
@run_option("spread")
@run_option("take")
def command() -> None:
    """Bring the project's code to every host, as `run` does, and say what changed there."""
