"""The options of ``clusterddp status``; cli/actions/status_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import cluster_options


@click.command("status")
@cluster_options
@click.option("--stacks", is_flag=True, help="Show where each worker is now: its Python stack.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until the run has ended.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.argument("run", required=False, shell_complete=completion.runs)
def command() -> None:
    """Show a run: the live one, else the last; or RUN, by id, prefix or name."""
