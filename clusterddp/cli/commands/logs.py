"""The options of ``clusterddp logs``; cli/actions/logs_action.py holds what it does."""

from __future__ import annotations

from pathlib import Path

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import MOMENT, RANKS, AttemptType, Number, cluster_options, watching_options

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("logs")
@cluster_options
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended; exit with its code.")
@click.option("--rank", type=RANKS, metavar="0,2-5", shell_complete=completion.ranks, help="Only these ranks.")
@click.option(
    "--host", metavar="PATTERN", shell_complete=completion.hosts, help="Only hosts that match this Ansible pattern."
)
@click.option("--since", type=MOMENT, metavar="T", help="Only lines after this: 10m (ago), or an ISO date.")
@click.option("--until", type=MOMENT, metavar="T", help="Only lines before this.")
@click.option("--grep", metavar="REGEX", help="Only lines that match.")
@click.option(
    "--attempt",
    type=AttemptType(),
    default="last",
    metavar="N|last|all",
    help="Which attempt of a run that was relaunched (last).",
)
@click.option("-n", "--tail", type=Number(0), metavar="N", help="Only the last N lines of each worker.")
@click.option("--stream", type=click.Choice(["out", "err", "both"]), default="both", help="Which stream (both).")
@watching_options
@click.option("-t", "--timestamps", is_flag=True, help="Begin every line with its time.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--after", type=FILE, metavar="FILE", help="Only what comes after the lines of FILE, by --json.")
@click.option("--save", type=FOLDER, metavar="DIR", help="Write each worker's raw output to files in DIR instead.")
@click.argument("run", required=False, shell_complete=completion.runs)
def command() -> None:
    """Show the lines of a run: the live one, else the last; or RUN, by id, prefix or name."""
