"""The options of ``clusterddp bundle``; cli/actions/bundle_action.py holds what it does."""

from __future__ import annotations

from pathlib import Path

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import cluster_options


@click.command("bundle")
@cluster_options
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write it there; without this into .clusterddp/bundles.",
)
@click.argument("run", required=False, shell_complete=completion.runs)
def command() -> None:
    """Write all that RUN and its hosts tell of it into one archive without secrets; by default the live run's."""
