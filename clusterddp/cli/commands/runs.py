"""The options of ``clusterddp runs``; cli/actions/runs_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli.click_options import Number, cluster_options
from clusterddp.cli.completion import runs
from clusterddp.remote.shared.run.run_state import ALL_STATES


@click.command("runs")
@cluster_options
@click.option("--all", "everything", is_flag=True, help="Other projects' runs too, with their project and operator.")
@click.option("--last", type=Number(1), metavar="N", help="The newest N of them.")
@click.option(
    "--state", "states", type=click.Choice(ALL_STATES), multiple=True, help="Runs in this state; may be repeated."
)
@click.option("--name", metavar="NAME", help="Runs of this name.")
@click.option(
    "--diff",
    nargs=2,
    metavar="A B",
    shell_complete=runs,
    help="Show what differs between two runs, by id, prefix or name.",
)
@click.option("--json", "as_json", is_flag=True, help="One list of objects; with --diff one object.")
def command() -> None:
    """List runs, the newest last; by default this project's."""
