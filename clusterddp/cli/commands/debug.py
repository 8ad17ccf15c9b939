"""The options of ``clusterddp debug``; cli/actions/debug_action.py holds what it does."""

from __future__ import annotations

from typing import Any

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import cluster_options


@click.command("debug")
@cluster_options
@click.argument("run", required=False, shell_complete=completion.runs)
@click.argument("rank", required=False, metavar="RANK")
def command(**given: Any) -> int:
    """Attach pdb to RANK, at its breakpoint() or where it is; without RANK list the ranks at one."""
    from clusterddp.cli.actions.debug_action import act  # noqa: PLC0415 - --help and Tab need the options alone

    return act(**given)
