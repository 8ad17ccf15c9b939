"""What runs need of their cluster (``Site``) and of what started them (``RunLauncher``), and which runs are wanted.

The interfaces alone, so that a command that looks at no run loads nothing of runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.hosts.connections import Connections
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.run_on_hosts import RunOnHosts
    from clusterddp.runs.view.run_view import Reports

R = TypeVar("R", bound="RunOnHosts")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which runs hosts report, and in how much detail."""

    reference: str | None = None  # only runs whose ids start with this, or that have this name
    project: str | None = None  # only runs of this project
    # only what a list and a verdict need: no processes, no events except lost output, no output of failed workers
    brief: bool = False


ALL, BRIEF = Wanted(), Wanted(brief=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhook:
    """A URL that receives notices about a run. It is a secret, because anyone who knows it can post there."""

    url: str = field(repr=False)  # receives ``{run, event, text}`` as JSON
    silence: float = 300.0  # seconds without output after which that is reported; 0: never


class Site(Protocol):
    """A cluster as the packages below ``api`` see it: ``api.Cluster``, or hosts that a launcher lends to the doctor."""

    inventory: Inventory
    project: Project
    notify: Callable[[str], None]  # receives notices for the user, a line each
    progress: Callable[[str], None]  # receives the current activity, in a few words
    connections: Connections  # also to hosts that the inventory does not name
    webhook: Webhook | None  # receives notices about the runs that are started, from their hosts where these can
    detached: bool  # whether nobody follows the runs that are started
    launched: RunOnHosts | None  # the run started last; its launcher sets it as soon as something may have started

    def connect(self, entries: Iterable[HostEntry] | None = None) -> list[Outcome[Host]]:
        """Open these hosts, or all; return each one's Host, or its error."""

    def host(self, name: str) -> Host:
        """Return the open host with that name."""

    def launcher_of(self, record: RunRecord) -> RunLauncher:
        """Return the launcher of the run with this record."""

    def describe(
        self, run: str, entries: Sequence[HostEntry], wanted: Wanted, patience: float | None = None
    ) -> list[Outcome[Reports]]:
        """Return what each of these hosts reports of a run, or with an empty ``run`` of all runs; see ``gather``."""


class RunLauncher(Protocol):
    """What a launcher does for a run that has been started; launch/launcher.py has all that it does."""

    def begun(self, cluster: Site, run: R, progress: Callable[[str], None]) -> R:
        """Wait until the run's nodes have begun, or it has ended; ``progress`` receives what it waits for.

        Raises ClusterddpError if the run can never begin; nothing is left of it.
        """

    def cancel(self, cluster: Site, run: str, hosts: Sequence[str], *, grace: float, reason: str) -> list[Proof]:
        """End the run on these hosts; return what each found, with a Proof with an error for a host not reached."""

    def reader(self, cluster: Site, run: str, host: str) -> Host:
        """Return a connection that can read the files of a run's host: its output and records."""

    def host(self, cluster: Site, run: str, host: str) -> Host:
        """Return a connection to the host of a live run itself, which sees its workers."""
