"""``clusterddp bundle``: all that a run and its hosts tell of it, in one archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from clusterddp.cli.bundle_lines import written_line
from clusterddp.cli.output import say
from clusterddp.cli.progress import Progress
from clusterddp.cli.session import open_cluster
from clusterddp.doctor.bundle.write_bundle import write_bundle

if TYPE_CHECKING:
    from pathlib import Path


def act(inventory: Path | None, limit: str | None, run: str | None, output: Path | None) -> int:
    """Write the bundle, and its path to stdout; return 0."""
    with open_cluster(inventory, limit) as cluster, Progress() as progress:
        view = cluster.find_view(run)
        progress.show(f"asking the hosts of run {view.run}")
        written = write_bundle(cluster.attach(view), view, output)
    say(written_line(view.run, written))
    click.echo(written.path)
    return 0
