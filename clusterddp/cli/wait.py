"""``clusterddp wait``: until runs have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from clusterddp.cli.main import say
from clusterddp.cli.options import cluster_options

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.api import Run

LOOK = 0.5  # seconds between looks at a run's hosts


@click.command("wait")
@cluster_options
@click.argument("runs", nargs=-1, metavar="[RUN…]")
def command(inventory: Path | None, limit: str | None, runs: tuple[str, ...]) -> int:
    """Wait for the only live run (or the last), or for the runs named; the highest of their codes."""
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - start-up

    with open_cluster(inventory, limit) as cluster:
        found = [cluster.find(reference) for reference in runs] or [cluster.find()]
        return max(_end_of(run) for run in found)


def _end_of(run: Run) -> int:
    while not (verdict := run.verdict()):
        time.sleep(LOOK)
    say(f"run {run.id}: {verdict.line}")
    return verdict.exit_code
