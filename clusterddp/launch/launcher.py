"""The interface of launchers, which start a run's torchrun on its machines and query it; one folder here for each.

No code outside a launcher's folder asks which launcher it has. What goes through a host's helper whatever has started
the run (stacks, signals, the lease) is the same for all, and not part of the interface.
"""

from __future__ import annotations

import importlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from clusterddp.errors import UsageError
from clusterddp.inventory.launchers import DEFAULT_LAUNCHER, LAUNCHERS, chooses_hosts
from clusterddp.runs.run_on_hosts import ALL, RunLauncher, Site, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from contextlib import AbstractContextManager

    from clusterddp.checks.evidence import Evidence
    from clusterddp.errors import ClusterddpError
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.launch.options import RunOptions
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.run import Run
    from clusterddp.runs.view.run_view import Reports, RunView
    from clusterddp.sync.transfer.collect import Origin


@dataclass(frozen=True, kw_only=True, slots=True)
class FileQuery:
    """Which files a ``pull`` is about: those at a path, or what is new in a run's folder since its start."""

    path: str | None  # the path; None for a run's files
    view: RunView | None  # the run; for a path, the one whose ranks were given
    entries: Sequence[HostEntry]  # the inventory's hosts that are meant; empty if it does not name the hosts of runs
    pattern: str | None  # the hosts that are meant, as a pattern, if one was given
    names: Collection[str] | None  # the hosts that held the ranks that are meant, if ranks were given
    # finds the live run, or else the last, for a launcher that needs a run to know any host
    last_run: Callable[[], RunView]

    @property
    def run(self) -> RunView | None:
        """Return the run whose files are meant; None for a path."""
        return self.view if self.path is None else None

    @property
    def workdirs(self) -> dict[str, str]:
        """Return the run's folder on each of its hosts: one that joined the run has its own in its own record alone."""
        if self.view is None:
            return {}
        records = [node.record for node in (*self.view.earlier, *self.view.nodes, *self.view.spares)]
        return {name: path for record in (self.view.record, *records) for name, path in record.workdirs.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class HostQuery:
    """Which hosts the doctor wants to look at."""

    nnodes: int | None  # how many, of those that a manager chooses; None: as many as the inventory names, else one
    partition: str | None  # in which of the manager's partitions; None: the inventory's, else the manager's default
    wanted: bool  # whether hosts are needed; else only the manager's report is


@dataclass(frozen=True, kw_only=True, slots=True)
class LentHosts:
    """Hosts that the doctor may look at."""

    site: Site | None  # the hosts; None if there are none
    # what the workload manager reports, as evidence of the host on which it was asked; None without one
    manager: Evidence | None = None


class Launcher(RunLauncher, Protocol):
    """One way to start runs: its own methods, and those for a run that has started (``RunLauncher``)."""

    name: str
    """Its name in the registry of launchers."""

    def render(self, site: Site, options: RunOptions) -> str:
        """Return what ``submit`` would do, as text that a person could use instead; start nothing."""

    def submit(self, site: Site, options: RunOptions) -> Run:
        """Start a run; return when it is under way. Raises ClusterddpError."""

    def ready(self, site: Site) -> str:
        """Check that runs can be started without named nodes; return what was found in one line."""

    clean_operation: str
    """The helper operation by which ``down`` cleans a host that keeps its runs' files."""

    def hosts_with_files(self, site: Site) -> Sequence[HostEntry]:
        """Return the hosts that keep its runs' files, which ``down`` cleans."""

    def describe(
        self, site: Site, run: str, entries: Sequence[HostEntry], wanted: Wanted = ALL, patience: float | None = None
    ) -> list[Outcome[Reports]]:
        """Return a run's nodes, or with an empty ``run`` those of all runs, as reported by or on behalf of each host.

        ``patience``: seconds of silence after which a host's outcome is an error, if each host reports for itself.
        """

    def files(self, site: Site, query: FileQuery) -> AbstractContextManager[tuple[list[Origin], list[ClusterddpError]]]:
        """Yield where the files are, which can be read while the block runs, and the errors of other hosts.

        Raises ClusterddpError if no host is meant, or none answers.
        """

    def borrow_hosts(self, site: Site, query: HostQuery) -> AbstractContextManager[LentHosts]:
        """Yield hosts like those of its runs, which the doctor may look at while the block runs.

        Raises ClusterddpError if the launcher has no such choice of hosts, or cannot be asked for them.
        """


def launcher(name: str, *, source: str = "--launcher") -> Launcher:
    """Return the launcher with this name; ``source`` says where it was given, for the UsageError if there is none."""
    if name not in LAUNCHERS:
        raise UsageError(f"{source} {name} is not there yet", remedy=f"leave it out: {DEFAULT_LAUNCHER} serves")
    found: Launcher = importlib.import_module(LAUNCHERS[name].module).LAUNCHER
    return found


def launchers(site: Site) -> list[Launcher]:
    """Return the launchers that may have runs here: the default, the inventory's, those of the project's runs."""
    names = {entry.launcher for entry in site.inventory.hosts if entry.role != "none"} | site.project.launchers
    return [launcher(name) for name in LAUNCHERS if name == DEFAULT_LAUNCHER or name in names]


def of_hosts(inventory: Inventory) -> Launcher:
    """Return the launcher that all hosts name; the default one if they name several."""
    names = {entry.launcher for entry in inventory.hosts if entry.role != "none"}
    return launcher(names.pop() if len(names) == 1 else DEFAULT_LAUNCHER)


def choosing_hosts() -> Launcher:
    """Return the launcher that finds the hosts of a run by itself, and so needs nothing but a login host."""
    return next(launcher(name) for name in LAUNCHERS if chooses_hosts(name))


def hosts_with_files(site: Site) -> list[HostEntry]:
    """Return the hosts that keep files of runs, for all launchers."""
    return [entry for one in launchers(site) for entry in one.hosts_with_files(site)]


def of_shell(inventory: Inventory) -> str | None:
    """Return the launcher whose job this shell is in, if there is no inventory: ``slurm`` within salloc or srun."""
    for name, entry in LAUNCHERS.items() if inventory.path is None else ():
        if entry.job_variable and os.environ.get(entry.job_variable) and shutil.which(entry.job_program):
            return name
    return None


def choose(requested: str | None, entries: Iterable[HostEntry]) -> Launcher:
    """Return the launcher that was asked for, or else the one that the hosts' ``clusterddp_launcher`` names.

    Raises UsageError if there is no launcher with that name, or hosts name different ones.
    """
    if requested:
        return launcher(requested)
    first: dict[str, str] = {}  # name → the first host that names it
    for entry in entries:
        first.setdefault(entry.launcher, entry.name)
    if len(first) > 1:
        differing = " and ".join(f"{name} ({host})" for name, host in first.items())
        raise UsageError(f"clusterddp_launcher differs: {differing}", remedy="choose one with --launcher")
    name, host = next(iter(first.items()), (DEFAULT_LAUNCHER, ""))
    return launcher(name, source=f"{host}: clusterddp_launcher:")


def of_record(record: RunRecord) -> Launcher:
    """Return the launcher that started an existing run, by the run's record; raises UsageError."""
    return launcher(record.launcher or DEFAULT_LAUNCHER, source="the run's launcher")
