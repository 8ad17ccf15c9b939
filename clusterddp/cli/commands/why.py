"""The options of ``clusterddp why``; cli/actions/why_action.py holds what it does."""

from __future__ import annotations

from typing import Any

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import cluster_options


@click.command("why")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.argument("run", required=False, shell_complete=completion.runs)
def command(**given: Any) -> int:
    """Say why a run does not go on, or how it ended: which rank, which operation, which line."""
    from clusterddp.cli.actions.why_action import act  # noqa: PLC0415 - --help and Tab need the options alone

    return act(**given)
