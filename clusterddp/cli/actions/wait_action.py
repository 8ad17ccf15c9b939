"""``clusterddp wait``: wait until runs have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.cli.arrays import find_referenced_runs
from clusterddp.cli.interrupts import explaining_ctrl_c
from clusterddp.cli.output import say
from clusterddp.cli.run_end import print_awaited_end
from clusterddp.cli.session import open_cluster
from clusterddp.runs.wait import find_soon, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clusterddp.api.cluster import Cluster
    from clusterddp.runs.run import Run


def act(inventory: Path | None, limit: str | None, runs: tuple[str, ...]) -> int:
    """Wait for the runs; return the highest of their exit codes."""
    with open_cluster(inventory, limit) as cluster:
        cluster.notify = notify = _OncePrinter().say
        found = [run for reference in runs for run in _find_runs(cluster, reference)]
        found = found or [cluster.find()]
        return max(_wait_and_report(run, notify) for run in found)


class _OncePrinter:
    """Prints each message once, however often hosts are asked."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def say(self, line: str) -> None:
        """Print the message if it is new."""
        if line not in self._shown:
            self._shown.add(line)
            say(line)


def _find_runs(cluster: Cluster, reference: str) -> list[Run]:
    """Return the run or the array's runs of a reference; waits a little for a run that is just starting."""
    found = find_soon(cluster, reference)
    return [cluster.attach(found)] if found else find_referenced_runs(cluster, reference, reading=True)


def _wait_and_report(run: Run, notify: Callable[[str], None]) -> int:
    """Wait for one run, print its verdict and return its exit code."""
    with explaining_ctrl_c(run):
        verdict = wait_for(run, notify)
    return print_awaited_end(run, verdict)
