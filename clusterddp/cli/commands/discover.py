"""The options of ``clusterddp discover``; cli/actions/discover_action.py holds what it does."""

from __future__ import annotations

from pathlib import Path

import click

from clusterddp.cli.click_options import DURATION, Number


@click.command("discover", context_settings={"allow_interspersed_args": False})
@click.option("--id", "identity", required=True, metavar="ID", help="The job's name, the same on all its machines.")
@click.option("--rank", type=Number(0), required=True, metavar="R", help="This machine's rank, from 0.")
@click.option("--world-size", type=Number(1), required=True, metavar="N", help="How many machines there are.")
@click.option("--port", type=Number(1), metavar="PORT", help="MASTER_PORT on rank 0 (a free one).")
@click.option("--interface", metavar="NAME", help="The network interface, by name or address.")
@click.option("--timeout", type=DURATION, default="10m", metavar="D", help="Give up after so long (10m).")
@click.option("--key-file", type=click.Path(path_type=Path), metavar="FILE", help="A key that all the machines share.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of NAME=VALUE lines.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]")
def command() -> None:
    """Find rank 0 by UDP multicast; print where it is, or run COMMAND with that in its environment."""
