"""What starts a run's torchrun on its machines, and asks after it: one interface, a folder here each.

``launcher("ssh")`` is ``LAUNCHER`` of ``launch/ssh/over_ssh.py``; the names are the inventory's
(``clusterddp_launcher``). What comes through a host's helper whatever has started the run (stacks, signals, the lease)
is the same for all, and not here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from clusterddp.errors import UsageError
from clusterddp.inventory.variable_names import LAUNCHERS
from clusterddp.runs.node_answers import ALL, Wanted
from clusterddp.runs.run import Carrier, Run, RunHosts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.launch.make_plan import LaunchPlan
    from clusterddp.launch.options import RunOptions
    from clusterddp.project import Project
    from clusterddp.remote.shared.run.run_record import RunRecord

DEFAULT = LAUNCHERS[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhook:
    """A URL that is told how a run fares; a secret: who knows it can write there.

    Attributes:
        url: Where to; ``{run, event, text}`` is sent as JSON.
        silence: Seconds without output after which that is told; 0: never.
    """

    url: str = field(repr=False)
    silence: float = 300.0


class Site(RunHosts, Protocol):
    """What a launcher needs of a Cluster."""

    project: Project
    progress: Callable[[str], None]
    webhook: Webhook | None  # to be told of by the run's hosts, where they can
    detached: bool  # nobody follows the runs that are started
    launched: Run | None  # the launcher sets it as soon as something may have started

    def plan(self, options: RunOptions, *, dry: bool = False) -> tuple[LaunchPlan, list[Host]]:
        """Connect, ask for facts, sync and plan; a ``dry`` one syncs nothing."""


class Launcher(Carrier, Protocol):
    """One way to have runs: its own two methods, and those of a run that is there (``runs.run.Carrier``)."""

    def render(self, site: Site, options: RunOptions) -> str:
        """What ``start`` would do, as text that a person could use in its place; starts nothing.

        Raises:
            ClusterddpError: it could not be started.
        """

    def start(self, site: Site, options: RunOptions) -> Run:
        """Start a run; returns when it is under way.

        Raises:
            ClusterddpError: it could not be started; nothing is left of it where we can look.
        """

    def ready(self, site: Site) -> str:
        """Whether runs can be had where no node is named: what was found, in one line; empty where nodes must be.

        Raises:
            ClusterddpError: they cannot; says why.
        """

    def keeping(self, site: Site) -> Sequence[HostEntry]:
        """The hosts that keep its runs' files: those that ``down`` looks after."""

    def describe(
        self,
        site: Site,
        run: str,
        entries: Sequence[HostEntry],
        wanted: Wanted = ALL,
        patience: float | None = None,
    ) -> list[Outcome[list[dict[str, Any]]]]:
        """A run's nodes, or with an empty ``run`` those of all, as each of the hosts (or who speaks for them) tells.

        ``patience``: seconds of silence after which a host's outcome is an error, where each speaks for itself.
        """


def launcher(name: str, *, said: str = "--launcher") -> Launcher:
    """The launcher of a name.

    Args:
        name: One of the inventory's names.
        said: Where it was said, for the error.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in LAUNCHERS or not _is_there(name):
        raise UsageError(f"{said} {name} is not there yet", remedy=f"leave it out: {DEFAULT} serves")
    found: Launcher = importlib.import_module(f"{__package__}.{name}.over_{name}").LAUNCHER
    return found


def launchers(site: Site) -> list[Launcher]:
    """Those that may have runs here: the default one, those of the inventory's hosts, those of the project's runs."""
    named = {entry.launcher for entry in site.inventory.hosts if entry.role != "none"} | site.project.launchers
    return [launcher(name) for name in LAUNCHERS if _is_there(name) and (name == DEFAULT or name in named)]


def keeping(site: Site) -> list[HostEntry]:
    """The hosts that keep runs, by whatever launcher."""
    return [entry for one in launchers(site) for entry in one.keeping(site)]


def of_shell(inventory: Inventory) -> str | None:
    """The launcher of a shell that salloc, or srun in a job, has given, where there is no inventory; else None."""
    given = inventory.path is None and os.environ.get("SLURM_JOB_ID") and shutil.which("srun")
    return "slurm" if given else None


def chosen(wanted: str | None, entries: Iterable[HostEntry]) -> Launcher:
    """The launcher that is asked for, else the one that the hosts' ``clusterddp_launcher`` names.

    Raises:
        UsageError: there is none of that name, or hosts name different ones.
    """
    if wanted:
        return launcher(wanted)
    first: dict[str, str] = {}  # name → the first host that names it
    for entry in entries:
        first.setdefault(entry.launcher, entry.name)
    if len(first) > 1:
        said = " and ".join(f"{name} ({host})" for name, host in first.items())
        raise UsageError(f"clusterddp_launcher differs: {said}", remedy="choose one with --launcher")
    name, host = next(iter(first.items()), (DEFAULT, ""))
    return launcher(name, said=f"{host}: clusterddp_launcher:")


def of_record(record: RunRecord) -> Launcher:
    """The launcher of a run that is there, by what it wrote down of itself.

    Raises:
        UsageError: this version has none of that name.
    """
    return launcher(record.launcher or DEFAULT, said="the run's launcher")


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(f"{__package__}.{name}") is not None
