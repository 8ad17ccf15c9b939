"""Reach a host by a command on another host, such as ``srun`` on a login host for a job's nodes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.hosts.ssh import BytePipe, Connector
    from clusterddp.inventory import HostEntry

_EXEC = "exec "  # how our only command begins (hosts/zipapp.py)


class Opener(Protocol):
    """Runs a command on a host and returns its byte pipe: a Connector, or an existing connection."""

    def open(self, entry: HostEntry, command: str) -> BytePipe:
        """Start the command and return its pipe."""


@dataclass(frozen=True, slots=True)
class ThroughHost:
    """An ``Opener`` that goes through another host."""

    connector: Connector  # opens the connection to the other host
    entry: HostEntry  # the other host
    prefix: Sequence[str]  # the command there; it runs the arguments appended to it on the target host

    def open(self, entry: HostEntry, command: str) -> BytePipe:  # noqa: ARG002 - the prefix names it
        """Open a pipe to a command on the host that ``prefix`` leads to."""
        return self.connector.open(self.entry, _EXEC + shlex.join(self.prefix) + " " + command.removeprefix(_EXEC))
