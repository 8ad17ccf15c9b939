"""Fabric tasks: the same operations over a ``fabric.Connection`` that the caller has.

    from fabric import Connection
    from clusterddp import tasks

    with Connection("gpu01") as connection:
        print(tasks.facts(connection).torch.version)

Each opens a Host over the connection, calls one operation, and closes the Host; the connection stays the caller's.
Not here: anything the operations themselves do.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from clusterddp.hosts.client import Host
from clusterddp.hosts.ssh import Connector
from clusterddp.inventory import HostEntry
from clusterddp.probe.network import probe
from clusterddp.remote.shared.node_env import GRACE
from clusterddp.runs.nodes import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric import Connection

    from clusterddp.facts import Facts
    from clusterddp.hosts.ssh import BytePipe

_log = logging.getLogger("clusterddp")


class _Over:
    """A connector that has one connection already."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._connector = Connector()

    def open(self, entry: HostEntry, command: str) -> BytePipe:  # noqa: ARG002 - the connection knows its host
        """Run the command over it."""
        return self._connector.over(self._connection, command)


@contextlib.contextmanager
def host(connection: Connection, **variables: Any) -> Iterator[Host]:
    """A Host over the connection; ``variables`` are fields of HostEntry, such as ``python`` or ``state``.

    It has the name that the connection was made with, as an inventory would: ssh_config's HostName is its address.
    """
    entry = HostEntry(name=connection.original_host, address=connection.host, **variables)
    with Host.open(entry, _Over(connection)) as opened:
        yield opened


def facts(connection: Connection, **variables: Any) -> Facts:
    """What the host is.

    Raises:
        HostError: the helper cannot start there, or a setup line fails.
    """
    with host(connection, **variables) as opened:
        return probe([opened])[0].get()


def runs(connection: Connection, **variables: Any) -> list[dict[str, Any]]:
    """Every node of every run that the host knows under this name, as its spools tell it."""
    with host(connection, **variables) as opened:
        return nodes_of(opened, "", _log.warning)


def stop(connection: Connection, run: str, *, grace: float = GRACE, **variables: Any) -> dict[str, Any]:
    """End the run's node on this host; the proof: ``{nodes, proved_empty}``."""
    with host(connection, **variables) as opened:
        order = {"run": run, "hosts": [opened.name], "grace": grace, "reason": "a Fabric task"}
        proof: dict[str, Any] = opened.call("stop", order, timeout=grace + 60)
        return proof
