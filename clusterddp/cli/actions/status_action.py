"""``clusterddp status``: show one run, host by host."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING

import click

from clusterddp.cli import verbose
from clusterddp.cli.output import say_warm_servers
from clusterddp.cli.session import open_cluster
from clusterddp.errors import ClusterddpError, single_errors
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.runs.wait import nobody_answers

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.api.cluster import Cluster
    from clusterddp.runs.view.run_view import RunView

_WATCH_INTERVAL = 2.0  # seconds between two queries of `status --watch`


def act(inventory: Path | None, limit: str | None, run: str | None, *, stacks: bool, watch: bool, as_json: bool) -> int:
    """Show the run once, or again and again; return the exit code."""
    with open_cluster(inventory, limit) as cluster:
        view = cluster.find_view(run)
        if not watch:
            _show(cluster, view, stacks=stacks, as_json=as_json)
            return 0
        with contextlib.suppress(KeyboardInterrupt):  # only the display ends
            _watch(cluster, view, stacks=stacks, as_json=as_json)
    return 0


def _show(cluster: Cluster, view: RunView, *, stacks: bool, as_json: bool, indent: int | None = 1) -> None:
    stacks_found = cluster.attach(view).stacks() if stacks and view.live else []
    if as_json:
        more = {"stacks": [stack.to_json() for stack in stacks_found]} if stacks else {}
        click.echo(json.dumps({**view.to_json(), **more}, indent=indent))
        return
    from clusterddp.cli.run_tables import print_stacks, print_status  # noqa: PLC0415 - --json needs no rich

    print_status(view)
    if verbose.is_on():
        say_warm_servers(cluster)
    if stacks:
        print_stacks(stacks_found)


def _watch(cluster: Cluster, view: RunView, *, stacks: bool, as_json: bool) -> None:
    """Show a run repeatedly: in place on a terminal; elsewhere when it changes, as JSON one object per line."""
    shown_state: object = None
    while True:
        state = (view.state(), view.attempt, len(view.nodes))
        if sys.stdout.isatty() and not as_json:
            click.echo("\x1b[H\x1b[2J", nl=False)
            shown_state = None
        if state != shown_state or as_json:
            _show(cluster, view, stacks=stacks, as_json=as_json, indent=None)
            sys.stdout.flush()
        shown_state = state
        if not view.live and (view.nodes or view.state() != RunState.UNKNOWN):  # it may go on where no host answers
            return
        time.sleep(_WATCH_INTERVAL)
        view = _look_again(cluster, view.run)


def _look_again(cluster: Cluster, run: str) -> RunView:
    """Return the run as its hosts report it now; while none of them answers, ask on."""
    while True:
        try:
            return cluster.find_view(run)
        except ClusterddpError as error:
            if not nobody_answers(error):
                raise
            for one in single_errors(error):
                cluster.connections.report(str(one))
        time.sleep(_WATCH_INTERVAL)
