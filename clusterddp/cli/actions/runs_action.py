"""``clusterddp runs``: list the runs that the hosts know, or compare two."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from clusterddp.cli.output import say
from clusterddp.cli.session import open_cluster
from clusterddp.errors import EXIT_FAILED, UsageError
from clusterddp.remote.shared.text.counted import counted
from clusterddp.runs.run_on_hosts import Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from clusterddp.api.cluster import Cluster
    from clusterddp.runs.view.run_view import RunView


def act(
    inventory: Path | None,
    limit: str | None,
    *,
    everything: bool,
    last: int | None,
    states: tuple[str, ...],
    name: str | None,
    diff: tuple[str, str] | None,
    as_json: bool,
) -> int:
    """List the runs, or compare two; return the exit code."""
    if diff and (everything or last or states or name):
        raise UsageError("--diff compares two runs", remedy="leave out --all, --last, --state and --name")
    with open_cluster(inventory, limit) as cluster:
        if diff:
            _compare(cluster, *diff, as_json=as_json)
            return 0
        of_project = Wanted(project=cluster.project.known_id or "", brief=True)
        views = cluster.list_runs() if everything else cluster.list_runs(of_project)
        views = views if everything else [view for view in views if cluster.owner.shares_project(view)]
        shown = filter_runs(views, states=states, name=name, last=last)
        if as_json:
            click.echo(json.dumps([view.to_json(hosts=False) for view in shown], indent=1))
        elif shown:
            from clusterddp.cli.run_tables import folders_line, print_runs  # noqa: PLC0415 - --json needs no rich

            print_runs(shown, everything=everything)
            if folder := folders_line(shown):
                say(folder)
        else:
            all_views = views if views or everything else cluster.list_runs()
            say(empty_message(views, all_views, everything=everything))
        # without any host the project's own copies are listed
        return 0 if cluster.connections.hosts else EXIT_FAILED


def _compare(cluster: Cluster, a: str, b: str, *, as_json: bool) -> None:
    """Print what differs between two runs."""
    differences, files = cluster.diff(a, b)
    if as_json:
        code = None if files is None else [asdict(entry) for entry in files]
        rows = [{"what": entry.what, "a": entry.a, "b": entry.b} for entry in differences]
        click.echo(json.dumps({"a": a, "b": b, "differences": rows, "files": code}, indent=1))
        return
    from clusterddp.cli.run_tables import print_diff  # noqa: PLC0415 - --json needs no rich

    if not differences:
        say(f"{a} and {b} differ in nothing that was written down")
    print_diff(a, b, differences, files or ())
    if files is None and any(entry.subject == "code" for entry in differences):
        say("which files differ cannot be told: the code of one of them is not kept in this project")


def filter_runs(
    views: Sequence[RunView], *, states: Sequence[str] = (), name: str | None = None, last: int | None = None
) -> list[RunView]:
    """Return the runs of one of the states (if any is given) and of that name; only the newest ``last`` of them."""
    kept = [view for view in views if name is None or view.record.name == name]
    kept = [view for view in kept if not states or view.state() in states]
    return kept[-last:] if last else kept


def empty_message(views: Sequence[RunView], all_views: Sequence[RunView], *, everything: bool) -> str:
    """Return why no run is shown, and how to see some; ``views`` are those of this project (or of --all)."""
    if views:
        whose = "" if everything else " of this project"
        return f"no run{whose} matches; {counted(len(views), 'run')} without --state and --name"
    if all_views:
        return f"no run of this project on these hosts; --all shows {counted(len(all_views), 'run')} of others"
    return "no run on these hosts"
