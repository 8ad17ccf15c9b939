"""The options of ``clusterddp down``; cli/actions/down_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli.click_options import cluster_options


@click.command("down")
@cluster_options
@click.option("--purge", is_flag=True, help="Remove all ended runs of this project too, with their run dirs.")
@click.option("--workdirs", is_flag=True, help="Remove the folders beside the project's on each host too.")
@click.option("--environments", is_flag=True, help="Remove environments of locks that are no longer used too.")
@click.option("--everything", is_flag=True, help="Remove all of clusterddp's from the account on each host.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command() -> None:
    """Stop this project's live runs, and remove old files of ours from its hosts; code and data stay."""
