"""``clusterddp wait``: until runs have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from clusterddp.cli import completion
from clusterddp.cli.options import cluster_options
from clusterddp.cli.output import say
from clusterddp.errors import ClusterddpError, HostsError, RunError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clusterddp.runs.run import Run
    from clusterddp.runs.verdict import Verdict
    from clusterddp.runs.view import RunView

LOOK = 0.5  # seconds between looks at a run's hosts
LOST_AFTER = 30.0  # seconds a host is still asked when all others have ended


@click.command("wait")
@cluster_options
@click.argument("runs", nargs=-1, metavar="[RUN…]", shell_complete=completion.runs)
def command(inventory: Path | None, limit: str | None, runs: tuple[str, ...]) -> int:
    """Wait for the only live run (or the last), or for the runs named; the highest of their codes."""
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - start-up

    with open_cluster(inventory, limit) as cluster:
        found = [cluster.find(reference) for reference in runs] or [cluster.find()]
        cluster.notify = notify = _Once().say
        return max(_end_of(run, notify) for run in found)


class _Once:
    """Says a line once, however often hosts are asked."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """The line, if it is new."""
        if line not in self._said:
            self._said.add(line)
            say(line)


def _end_of(run: Run, notify: Callable[[str], None]) -> int:
    verdict = _verdict(run, notify)
    for notice in verdict.preface:
        say(f"run {run.id}: {notice}")
    say(f"run {run.id}: {verdict.line}")
    return verdict.exit_code


def _verdict(run: Run, notify: Callable[[str], None]) -> Verdict:
    """Ask until the run has ended. A host out of reach may come back: it is waited for like the run itself."""
    silent_since: float | None = None
    while True:
        view = _view(run, notify)
        verdict = view.verdict() if view else None
        if view and not view.silent:
            silent_since = None
        elif verdict:
            silent_since = silent_since or time.monotonic()
        if verdict and (silent_since is None or time.monotonic() - silent_since > LOST_AFTER):
            return verdict
        time.sleep(LOOK)


def _view(run: Run, notify: Callable[[str], None]) -> RunView | None:
    """The run as its hosts tell it; None while none of them answers."""
    try:
        return run.view()
    except ClusterddpError as error:
        errors = error.errors if isinstance(error, HostsError) else [error]
        if isinstance(error, RunError) or not any(isinstance(one, UnreachableError) for one in errors):
            raise
        notify(f"{error}; trying again")
        return None
