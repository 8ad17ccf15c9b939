"""The options of ``clusterddp sync``; cli/actions/sync_action.py holds what it does."""

from __future__ import annotations

from typing import Any

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
def command(**given: Any) -> int:
    """Bring the project's code to every host, as `run` does, and say what changed there."""
    from clusterddp.cli.actions.sync_action import act  # noqa: PLC0415 - --help and Tab need the options alone

    return act(**given)
