"""What opens the way to a host; a command on another host can, as ``srun`` on a login host does for a job's nodes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.hosts.ssh import BytePipe, Connector
    from clusterddp.inventory import HostEntry

_FIRST = "exec "  # our one command begins so (hosts/zipapp.py)


class Opener(Protocol):
    """What runs a command on a host and gives its byte pipe: a Connector, or one connection somebody has."""

    def open(self, entry: HostEntry, command: str) -> BytePipe:
        """The pipe to the command."""


@dataclass(frozen=True, slots=True)
class Through:
    """An ``Opener``.

    Attributes:
        connector: Reaches the other host.
        entry: That host.
        words: The command there, which starts the words behind it on the host that is meant.
    """

    connector: Connector
    entry: HostEntry
    words: Sequence[str]

    def open(self, entry: HostEntry, command: str) -> BytePipe:  # noqa: ARG002 - the words name it
        """The pipe to a command on the host that the words name."""
        return self.connector.open(self.entry, _FIRST + shlex.join(self.words) + " " + command.removeprefix(_FIRST))
