"""The base class of `api.Cluster`: the part that other packages may use of it (``Site``)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from clusterddp import api
from clusterddp.api import code_and_commands
from clusterddp.errors import UnreachableError, UsageError
from clusterddp.hosts.connections import Connections
from clusterddp.hosts.ssh import Connector, append_known_hosts
from clusterddp.inventory import Inventory, with_own_python
from clusterddp.launch import launcher
from clusterddp.launch.options import option_values
from clusterddp.launch.options.keywords import CLUSTER_READERS
from clusterddp.project.project import Project, find
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.units import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Unpack

    import clusterddp.api.find_runs  # noqa: F401 - so that its types are known
    from clusterddp.errors import HostKeyError
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry
    from clusterddp.launch.options.keywords import ClusterKeywords
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.run_on_hosts import RunOnHosts, Wanted, Webhook
    from clusterddp.runs.view.run_view import Reports
    from clusterddp.runs.watch_hosts import Top


CONNECT_TIMEOUT = 10.0  # seconds for the TCP connection to a host, and then for its server's banner


class ClusterHosts:
    """The hosts of one inventory, opened when first needed, and what they report of runs."""

    def __init__(self, inventory: Inventory, **options: Unpack[ClusterKeywords]) -> None:
        if not isinstance(inventory, Inventory):
            raise UsageError(
                f"inventory: {shown(inventory)} is no Inventory", remedy="Cluster.from_inventory reads a file"
            )
        given = option_values.read_all(options, CLUSTER_READERS, "a cluster")
        self.inventory = with_own_python(inventory)
        self.project: Project = given.get("project") or find()
        self.notify: Callable[[str], None] = given.get("notify", lambda _line: None)
        self.progress: Callable[[str], None] = given.get("progress", lambda _line: None)
        self._closed = threading.Event()
        self.detached = False  # whether nobody is to follow the runs that are started
        self.webhook: Webhook | None = None  # receives the events of the runs that are started
        self.launched: RunOnHosts | None = None  # the run started last, from its first host's start on
        connector = Connector(
            accept_new_host_keys=given.get("accept_new_host_keys", False),
            ask=given.get("ask"),
            connect_timeout=given.get("connect_timeout", CONNECT_TIMEOUT),
            banner_timeout=CONNECT_TIMEOUT,
            keep=given.get("keep"),
        )
        self.connections = Connections(connector, self._tell)

    def __repr__(self) -> str:
        where = self.inventory.path or "this machine"
        return f"<Cluster of {counted(len(self.inventory.hosts), 'host')} from {where}, project {self.project.root}>"

    def close(self) -> None:
        """Close every connection. Runs continue; only those with ``on_disconnect="stop"`` are stopped, in a minute."""
        self._closed.set()
        self.connections.close()

    def _tell(self, line: str) -> None:
        self.notify(line)  # `notify` may have been replaced since

    def connect(self, entries: Iterable[HostEntry] | None = None, *, writes: bool = False) -> list[Outcome[Host]]:
        """Open the hosts (nodes and spares, else login hosts) that are not open; return each one's Host or its error.

        ``writes``: a host whose state folder cannot be written is an error.
        """
        if entries is None:
            entries = self.inventory.run_hosts or self.inventory.submitting
        return self.connections.open_all(entries, self.progress, writes=writes)

    def trust(self, errors: Sequence[HostKeyError]) -> None:
        """Record the unknown keys of ``errors``, which the user has compared; then the hosts can be connected."""
        append_known_hosts(errors)

    def host(self, name: str) -> Host:
        """Return the open host of that name, reopened if its connection was lost."""
        for entry in self.inventory.hosts:
            if entry.name == name:
                return self.connections.open(entry)
        raise UnreachableError(name, "is not in the inventory")

    def reached(self) -> list[Host]:
        """Return every node and spare, open.

        Raises:
            HostError, HostsError: Hosts do not answer; the remedy says how to go on without them.
        """
        return code_and_commands.reached(self)

    def launcher_of(self, record: RunRecord) -> launcher.Launcher:
        """Return the launcher that started the run with this record."""
        return launcher.of_record(record)

    def top(self, reference: str | None = None) -> Top:
        """Return a ``Top``, which samples a run's ranks and hosts: the named run, else the live one; else all hosts."""
        return api.find_runs.top(self, reference)

    def describe(
        self, run: str, entries: Sequence[HostEntry], wanted: Wanted, patience: float | None = None
    ) -> list[Outcome[Reports]]:
        """Return what each of these hosts knows of a run (of all runs if ``run`` is empty), from every launcher."""
        launchers = launcher.launchers(self)
        return [outcome for one in launchers for outcome in one.describe(self, run, entries, wanted, patience)]
