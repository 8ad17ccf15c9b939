"""The options of ``clusterddp up``; cli/actions/up_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import Checked, setting
from clusterddp.cli.run_options import run_option
from clusterddp.launch.options import option_values


@click.command("up")
@setting("--limit", metavar="PATTERN", help="Only hosts that match this Ansible pattern; remembered.")
@click.option("--accept-new-host-keys", is_flag=True, help="Record unknown host keys; a changed one is always refused.")
@click.option("--python", metavar="PATH", help="For a host list: the interpreter with torch (clusterddp_python).")
@click.option(
    "-e", "variables", multiple=True, metavar="NAME=VALUE", help="For a host list: a variable of the inventory."
)
@click.option("--skip", type=Checked(option_values.checks), metavar="CHECKS", help="Take hosts that fail these checks.")
@run_option("spread")
@click.option(
    "--warm",
    type=Checked(option_values.limit),
    metavar="DURATION",
    help="Start a warm server on each host ahead of the first run; it waits so long for one.",
)
@click.option(
    "--keep",
    type=Checked(option_values.limit),
    metavar="DURATION",
    help="Keep the connections for later commands, each until it is unused for so long; `down` ends them.",
)
@click.option(
    "--playbook",
    "playbooks",
    multiple=True,
    metavar="FILE",
    shell_complete=completion.playbooks,
    help="Run this Ansible playbook on the hosts first; a file, or one of ours: hosts.yml.",
)
@click.argument("inventory", metavar="INVENTORY|HOST,HOST…", shell_complete=completion.files)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS…]")
def command() -> None:
    """Reach every host, check that it can train, show it, and remember the inventory for this project."""
