"""The options of ``clusterddp exec``; cli/actions/exec_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli.click_options import Duration, cluster_options


@click.command("exec", context_settings={"allow_interspersed_args": False})
@cluster_options
@click.option("--gather", is_flag=True, help="Show equal outputs of several hosts once, at the end.")
@click.option("--sync", is_flag=True, help="Bring the project's code to the hosts first.")
@click.option("--timeout", type=Duration(positive=True), help="End it after this time.")
@click.option("--bare", is_flag=True, help="In the login's environment and home, not as a worker has it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--shell", metavar="STRING", help="A text for the host's shell in place of COMMAND.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND…")
def command() -> None:
    """Run COMMAND on every host, in the environment and folder that a worker would have."""
