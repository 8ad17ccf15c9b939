"""The options of ``clusterddp init``; cli/actions/init_action.py holds what it does."""

from __future__ import annotations

import click

from clusterddp.cli import completion


@click.command("init")
@click.option("-o", "--output", metavar="FILE", default="inventory.yaml", help="Where to write it; - is stdout.")
@click.argument("origin", required=False, metavar="[FROM]", shell_complete=completion.files)
def command() -> None:
    """Write an inventory from FROM: HOST,HOST…, an ssh_config, or a host file of Slurm, DeepSpeed or MPI."""
