"""The options of ``clusterddp push``; cli/actions/push_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli.click_options import SIZE, cluster_options
from clusterddp.cli.run_options import run_option


@click.command("push")
@cluster_options
@click.option("--overwrite", is_flag=True, help="Replace files that differ there, whoever has put them.")
@click.option("--rate", type=SIZE, metavar="SIZE", help="Send at most so much a second, to all hosts together (100MB).")
@run_option("spread")
@click.argument("paths", nargs=-1, required=True, metavar="SRC... [DEST]", type=click.Path())
def command() -> None:
    """Bring files to DEST on every host, below the workdir; each content goes over once, and nothing is deleted."""
