"""The options of ``clusterddp stop``; cli/actions/stop_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import DURATION, cluster_options, setting
from clusterddp.remote.shared.run.run_settings import GRACE


@click.command("stop")
@cluster_options
@click.option("--all", "everything", is_flag=True, help="Every live run of this project.")
@setting("--grace", type=DURATION, default=GRACE, help="Time between SIGTERM and SIGKILL (30s).")
@click.argument("runs", nargs=-1, metavar="[RUN…]", shell_complete=completion.runs)
def command() -> None:
    """Stop the only live run, or the runs named."""
