"""The options of ``clusterddp doctor``; cli/actions/doctor_action.py holds what it does."""

from __future__ import annotations

from pathlib import Path

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import Checked, Number, cluster_options
from clusterddp.cli.verbose import print_records
from clusterddp.launch.options import option_values


@click.command("doctor")
@cluster_options
@click.option(
    "--only", metavar="NAMES", shell_complete=completion.checks, help="Only these checks or categories, with commas."
)
@click.option("--skip", metavar="NAMES", shell_complete=completion.checks, help="All but these.")
@click.option("--share-gpus", is_flag=True, help="GPUs that others use are no fault.")
@click.option("--all-pairs", is_flag=True, help="Of more than 32 hosts, too, connect every two with each other.")
@click.option(
    "--launcher",
    type=Checked(option_values.launcher),
    metavar="NAME",
    help="How jobs are to start: ssh (default) or slurm.",
)
@click.option("--nnodes", type=Number(1), metavar="N", help="With Slurm: look at so many nodes, in a short job (1).")
@click.option("--partition", metavar="NAME", help="With Slurm: in this partition.")
@click.option("--list", "listing", is_flag=True, help="Show the checks, and run none.")
@click.option("--bench", is_flag=True, help="Measure too: bandwidth, all-reduces, GPUs, late ranks.")
@click.option("--strict", is_flag=True, help="Exit 1 also for a warning, and for what could not be looked at.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    callback=print_records,
    help="Show also what passes, every host's name, and what is asked of which host.",
)
@click.option("--fix", is_flag=True, help="Show what playbooks of ours would change, and run them after a yes.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a page with the findings, the hosts and the ways between them.",
)
@click.option(
    "--explain",
    metavar="LOGFILE",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    help="Say what the known messages in a log, or a bundle, mean, and run no check.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS…]")
def command() -> None:
    """Check that a job would run; name the cause and the fix where it would not."""
