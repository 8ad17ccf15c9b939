"""The options of ``clusterddp run``; cli/actions/run_action.py holds what it does."""

from __future__ import annotations

from pathlib import Path

import click

from clusterddp.cli import completion, option_checks
from clusterddp.cli.click_options import RANKS, Checked, cluster_options, setting, watching_options
from clusterddp.cli.run_command import RunCommand
from clusterddp.cli.run_options import run_options


@click.command(
    "run",
    cls=RunCommand,
    context_settings={"allow_interspersed_args": False, "token_normalize_func": lambda word: word.replace("_", "-")},
)
@cluster_options
@run_options("nnodes", before="secret")
@click.option(
    "--env-file", type=click.Path(path_type=Path, readable=False), metavar="FILE", help="K=V lines for all workers."
)
@run_options("secret", before="time_limit")
@click.option("--detach", is_flag=True, help="Print the run id and return at once.")
@run_options("time_limit", before="debug_comm")
@setting("--show", type=RANKS, default="all", metavar="all|RANKS", help="Whose lines to show.")
@watching_options
@run_options("debug_comm", before="module")
@click.option(
    "--result", type=Checked(option_checks.check_writable), metavar="FILE", help="Write the final status there as JSON."
)
@click.option(
    "--timeline",
    type=Checked(option_checks.check_writable),
    metavar="FILE.html",
    help="Write there where the start's time went on every host; as text unless it ends in .html.",
)
@click.option(
    "--notify",
    envvar="CLUSTERDDP_NOTIFY",
    metavar="CMD|URL",
    help="Tell a URL how the run fares, or a command here while this follows it.",
)
@click.option("--bundle", is_flag=True, help="If it fails, write all that it and its hosts tell into one file.")
@click.option("--dry-run", is_flag=True, help="Print what would be started, as commands; start nothing.")
@run_options("module", before="again")
@click.option("--join", metavar="RUN", help="Let more hosts join an elastic run that is under way; no SCRIPT then.")
@run_options("again", before="limit")
@click.argument("script", required=False, metavar="SCRIPT", shell_complete=completion.files)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=completion.files)
def command() -> None:
    """Run SCRIPT with ARGS by torchrun on every node, and show its lines labelled by rank."""
