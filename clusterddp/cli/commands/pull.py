"""The options of ``clusterddp pull``; cli/actions/pull_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import RANKS, cluster_options


@click.command("pull")
@cluster_options
@click.option("--run", metavar="RUN", shell_complete=completion.runs, help="What is new since this run's start.")
@click.option(
    "--rank",
    type=RANKS,
    metavar="RANKS",
    shell_complete=completion.ranks,
    help="Only from the hosts of these ranks (0,2-3).",
)
@click.option("--host", metavar="PATTERN", shell_complete=completion.hosts, help="Only from hosts that match this.")
@click.option("--overwrite", is_flag=True, help="Replace files here that differ.")
@click.argument("words", nargs=-1, metavar="[RUN|PATH] [DEST]", shell_complete=completion.runs)
def command() -> None:
    """Bring here what lies at PATH on the hosts, or what RUN has written; by default the live run, else the last."""
