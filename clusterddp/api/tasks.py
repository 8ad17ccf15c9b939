"""Fabric tasks: the operations of ``Cluster`` over ``fabric.Connection``s, or a ``Group`` of them, of the caller.

    from fabric import Connection, ThreadingGroup
    from clusterddp import tasks

    with ThreadingGroup("gpu00", "gpu01") as hosts:
        run = tasks.start(hosts, "train.py", ["--lr", "3e-4"], python="/opt/train/bin/python")
        for line in tasks.logs(hosts, run, follow=True):
            print(line.rank, line.text)

Each makes a ``Cluster`` over the connections, calls one of its methods, and closes what it opened; the connections stay
open. ``clusterddp.fabfile`` offers them as tasks of the program ``fab``.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterddp.api.cluster import Cluster
from clusterddp.errors import UsageError
from clusterddp.hosts.client import Host
from clusterddp.hosts.connections import Connections
from clusterddp.hosts.ssh import Connector
from clusterddp.inventory import HostEntry, Inventory, entry_of
from clusterddp.probe.dial_hosts import probe
from clusterddp.remote.shared.run.run_settings import GRACE
from clusterddp.remote.shared.verdict.node_report import OFTEN_EMPTY, to_json
from clusterddp.runs.node_answers import query_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    from fabric import Connection

    from clusterddp import Diagnosis, Executed, LogLine, Proof, Pulled, SyncResult
    from clusterddp.hosts.ssh import BytePipe

    Hosts: TypeAlias = "Connection | Iterable[Connection]"

_log = logging.getLogger("clusterddp")


class _GivenConnections(Connector):
    """A Connector that uses the caller's Fabric connections, found by the hosts' names, and leaves them open."""

    def __init__(self, connections: Iterable[Connection]) -> None:
        super().__init__()
        self._by_name = {one.original_host: one for one in connections}

    def open(self, entry: HostEntry, command: str, *, asks: bool = True) -> BytePipe:  # noqa: ARG002 - Fabric may ask
        """Run the command over the host's connection."""
        return self.over(self._by_name[entry.name], command)


class _ClusterOverConnections(Cluster):
    """A Cluster whose hosts are reached over the caller's connections."""

    def __init__(self, connections: Sequence[Connection], **variables: Any) -> None:
        entries = tuple(_entry(one, variables) for one in connections)
        names = tuple(entry.name for entry in entries)
        if twice := next((name for name in names if names.count(name) > 1), ""):
            # By user or port alone they cannot be told apart: all that is known of a host has its name.
            remedy = "give each host a name of its own, by a Host block in ~/.ssh/config"
            raise UsageError(f"two connections are to {twice}", remedy=remedy)
        inventory = Inventory(path=None, hosts=entries, groups={"all": names})
        super().__init__(inventory, notify=_log.warning)
        self.inventory = inventory  # as it was given: none of the hosts is this machine
        self.connections = Connections(_GivenConnections(connections), self._tell)


def _entry(connection: Connection, variables: dict[str, Any]) -> HostEntry:
    """Return a host with the name its connection was made with, as in an inventory; its HostName is the address."""
    return replace(entry_of(connection.original_host, variables), address=connection.host)


def cluster(hosts: Hosts, **variables: Any) -> Cluster:
    """Return the Cluster of these hosts, which the caller closes: all of the Python API over their connections.

    ``variables``: what an inventory would say of all of them, without ``clusterddp_``: ``python``, ``setup``, ``env``.
    """
    return _ClusterOverConnections(_distinct(hosts if _are_several(hosts) else [hosts]), **variables)


def _distinct(connections: Iterable[Connection]) -> list[Connection]:
    """Return each connection once: a batch system's list of nodes has a host once for each of its slots."""
    # Fabric's own equality leaves gateways out, behind which two hosts may have one address.
    return list({(one, one.original_host, one.gateway): one for one in connections}.values())


def _are_several(hosts: Any) -> bool:
    """Whether it is a collection of connections rather than a single one."""
    return not hasattr(hosts, "original_host")


@contextlib.contextmanager
def host(connection: Connection, **variables: Any) -> Iterator[Host]:
    """Yield a Host over the connection, for operations of one's own."""
    with Host.open(_entry(connection, variables), _GivenConnections([connection])) as opened:
        yield opened


def facts(hosts: Hosts, **variables: Any) -> Any:
    """Return the host's ``Facts``; for several hosts a mapping of them by name.

    Raises:
        HostError, HostsError: The helper cannot start there, or a setup line fails.
    """
    with cluster(hosts, **variables) as opened:
        found = {outcome.name: outcome.get() for outcome in probe(opened.reached())}
    return found if _are_several(hosts) else next(iter(found.values()))


def doctor(hosts: Hosts, *, only: Iterable[str] = (), skip: Iterable[str] = (), **variables: Any) -> Diagnosis:
    """Find out whether a job would run on them, as ``Cluster.doctor``."""
    with cluster(hosts, **variables) as opened:
        return opened.doctor(only=tuple(only), skip=tuple(skip))


def sync(hosts: Hosts, **variables: Any) -> SyncResult:
    """Bring the project's code to them, as ``Cluster.sync``."""
    with cluster(hosts, **variables) as opened:
        return opened.sync()


def pull(hosts: Hosts, what: str | None = None, to: str | None = None, **variables: Any) -> Pulled:
    """Bring files of the hosts here: at a path below the workdir, or a run's output, as ``Cluster.pull``."""
    with cluster(hosts, **variables) as opened:
        return opened.pull(what, to)


def exec(hosts: Hosts, *argv: str, shell: str | None = None, **variables: Any) -> list[Executed]:  # noqa: A001 - the command's name
    """Run a command, or a text for the shell, as a worker would; return how it ended on each, with its output."""
    with cluster(hosts, **variables) as opened:
        return opened.exec(*argv) if shell is None else opened.exec(*argv, shell=shell)


def start(
    hosts: Hosts, script: str, args: Sequence[str] = (), *, options: dict[str, Any] | None = None, **variables: Any
) -> str:
    """Start ``script`` by torchrun on all of them, as `clusterddp run --detach`; return the run's id.

    ``options`` are those of `clusterddp run`: ``{"time_limit": "5m"}``.

    Raises:
        ClusterddpError: The run could not be started; nothing is left running on hosts that answer.
    """
    with cluster(hosts, **variables) as opened:
        return opened.run(script, args, **(options or {})).id


def logs(hosts: Hosts, run: str | None = None, *, follow: bool = False, **variables: Any) -> Iterator[LogLine]:
    """Yield the lines of a run, as ``Run.logs``; with ``follow`` until it has ended."""
    with cluster(hosts, **variables) as opened:
        yield from opened.find(run).logs(follow=follow)


def status(hosts: Hosts, run: str | None = None, **variables: Any) -> dict[str, Any]:
    """Return the status object of a run (docs/labels-and-json.md)."""
    with cluster(hosts, **variables) as opened:
        return opened.find(run).status()


def runs(connection: Connection, **variables: Any) -> list[dict[str, Any]]:
    """Return every node of every run that the host knows under this name, from its spools."""
    with host(connection, **variables) as opened:
        nothing = dict.fromkeys(OFTEN_EMPTY)  # on the wire these are left out
        return [nothing | to_json(one) for one in query_nodes(opened, "", _log.warning)]


def stop(hosts: Hosts, run: str, *, grace: float = GRACE, **variables: Any) -> list[Proof]:
    """End a run on these hosts; return each one's proof. One host's supervisor passes the stop on to all of the run."""
    with cluster(hosts, **variables) as opened:
        return opened.find(run, reading=False).stop(grace=grace, reason="a Fabric task")
