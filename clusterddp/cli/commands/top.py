"""The options of ``clusterddp top``; cli/actions/top_action.py holds what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import cluster_options


@click.command("top")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a look, on a line.")
@click.option(
    "--openmetrics",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write each look to FILE too, for a node exporter.",
)
@click.argument("run", required=False, shell_complete=completion.runs)
def command(**given: Any) -> int:
    """Watch what hosts and ranks do: the live run, or RUN; without one all hosts, and who holds which GPU."""
    from clusterddp.cli.actions.top_action import act  # noqa: PLC0415 - --help and Tab need the options alone

    return act(**given)
