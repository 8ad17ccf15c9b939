"""The real command line, whose connections lead to simulated hosts: ``python -m tests.simulated.operator SOCKET …``."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

from clusterddp.api import cluster_hosts
from clusterddp.cli.main import main as command_line
from clusterddp.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.hosts.ssh import BytePipe
    from clusterddp.inventory import HostEntry


class SocketPipe:
    """A byte pipe to a simulated host."""

    def __init__(self, path: str, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._socket.sendall(name.encode() + b"\n")

    def read(self, size: int) -> bytes:
        """See ``BytePipe``."""
        return self._socket.recv(size)

    def write(self, data: bytes) -> None:
        """See ``BytePipe``."""
        self._socket.sendall(data)

    def close(self) -> None:
        """See ``BytePipe``."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def stderr(self) -> str:
        """See ``BytePipe``."""
        return ""

    def exit_status(self) -> int | None:
        """See ``BytePipe``."""
        return None


class SimulatedConnector:
    """Takes the place of ``hosts.ssh.Connector``."""

    notices: Sequence[str] = ()

    def __init__(self, path: str) -> None:
        self._path = path
        self._pipes: list[SocketPipe] = []

    def open(self, entry: HostEntry, command: str, *, asks: bool = True) -> BytePipe:
        """A pipe to the host of that name, whatever the command."""
        del command, asks
        try:
            pipe = SocketPipe(self._path, entry.name)
        except OSError as error:
            raise UnreachableError(entry.name, str(error)) from error
        self._pipes.append(pipe)
        return pipe

    def close(self) -> None:
        """End every connection."""
        for pipe in self._pipes:
            pipe.close()


def main() -> NoReturn:
    """Run the command that the rest of the command line is, and exit as it does."""
    path = sys.argv[1]
    vars(cluster_hosts)["Connector"] = lambda **_options: SimulatedConnector(path)
    sys.argv = ["clusterddp", *sys.argv[2:]]
    command_line()


if __name__ == "__main__":
    main()
