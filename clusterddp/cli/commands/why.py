"""The options of ``clusterddp why``; cli/actions/why_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import cluster_options


@click.command("why")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.argument("run", required=False, metavar="[RUN|FILE]", shell_complete=completion.runs_or_files)
def command() -> None:
    """Say why a run does not go on, or how it ended: which rank, which operation, which line. FILE: a bundle."""
