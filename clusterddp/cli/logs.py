"""``clusterddp logs``: a run's lines again, or still; from anywhere, nothing lost, nothing twice."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from clusterddp.cli.main import say
from clusterddp.cli.options import MOMENT, RANKS, Number, cluster_options
from clusterddp.errors import EXIT_NOT_THE_SCRIPT, RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterddp.logs import Event, Renderer, Selection


@click.command("logs")
@cluster_options
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended; exit with its code.")
@click.option("--rank", type=RANKS, metavar="0,2-5", help="Only these ranks.")
@click.option("--host", metavar="PATTERN", help="Only hosts that match this Ansible pattern.")
@click.option("--since", type=MOMENT, metavar="T", help="Only lines after this: 10m (ago), or an ISO date.")
@click.option("--until", type=MOMENT, metavar="T", help="Only lines before this.")
@click.option("--grep", metavar="REGEX", help="Only lines that match.")
@click.option("--tail", type=Number(0), metavar="N", help="Only the last N lines of each worker.")
@click.option("--stream", type=click.Choice(["out", "err", "both"]), default="both", help="Which stream (both).")
@click.option("-t", "--timestamps", is_flag=True, help="Begin every line with its time.")
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
@click.argument("run", required=False)
def command(
    inventory: Path | None,
    limit: str | None,
    run: str | None,
    *,
    follow: bool,
    rank: tuple[int, ...] | None,
    host: str | None,
    since: int | None,
    until: int | None,
    grep: str | None,
    tail: int | None,
    stream: str,
    timestamps: bool,
    as_json: bool,
) -> int:
    """Show the lines of a run: the live one, else the last; or RUN, by id, prefix or name."""
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - start-up
    from clusterddp.follow import Follower  # noqa: PLC0415
    from clusterddp.logs import Selection, renderer_for  # noqa: PLC0415

    renderer = renderer_for(sys.stdout.buffer, as_json=as_json, timestamps=timestamps)
    selection = Selection(
        ranks=rank,
        stream=stream,
        follow=follow,
        since_ns=since,
        until_ns=until,
        grep=grep,
        tail=tail,
        timed=renderer.timed,
        partials=renderer.partials,
    )
    with open_cluster(inventory, limit) as cluster:
        found = cluster.find(run)
        if rank and min(rank) >= found.record["world_size"]:
            last = found.record["world_size"] - 1
            raise RunError(f"run {found.id} has no rank {min(rank)}", remedy=f"its ranks are 0-{last}")
        if host:
            run_hosts = list(found.spools)
            names = {entry.name for entry in cluster.inventory.limit(host).hosts}
            found = replace(found, spools={name: spool for name, spool in found.spools.items() if name in names})
            if not found.spools:
                raise RunError(f"run {found.id} has no part on {host}", remedy=f"its hosts: {', '.join(run_hosts)}")
        with writer(renderer) as show:
            verdict = Follower(found, selection, show).follow()
    if not follow:
        return 0
    if verdict is None:
        return EXIT_NOT_THE_SCRIPT
    say(f"run {found.id}: {verdict.line}")
    return verdict.exit_code


@contextlib.contextmanager
def writer(renderer: Renderer) -> Iterator[Callable[[list[Event]], None]]:
    """What draws batches of events on stdout; what is half drawn is cleared at the end."""
    from clusterddp import logs  # noqa: PLC0415 - start-up

    output = sys.stdout.buffer

    def show(events: list[Event]) -> None:
        logs.show(events, renderer, output, say)

    try:
        yield show
    finally:
        output.write(renderer.hide())
        output.flush()


def selection_for(renderer: Renderer, shown: tuple[int, ...] | None) -> Selection:
    """What an attached ``run`` shows: everything from the start, as it comes."""
    from clusterddp.logs import Selection  # noqa: PLC0415 - start-up

    return Selection(follow=True, ranks=shown, partials=renderer.partials, timed=renderer.timed)
