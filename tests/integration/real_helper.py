"""The real helper over the ``local`` opener, with the operations of ``helper_ops`` added to its zipapp.

Not covered here: connections over SSH (test_connection*).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterddp.hosts.client import Host
from clusterddp.hosts.ssh import Connector
from clusterddp.hosts.ssh.pipes import ChildPipe
from clusterddp.hosts.zipapp import COMMAND, PACKAGE, Bundle, bundle
from clusterddp.inventory import HostEntry
from tests.lab.system import ProcessId, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def entry(state: Path, name: str = "here", **variables: object) -> HostEntry:
    """This machine as a host of its own."""
    known = {"connection": "local", "state": str(state), "python": sys.executable, **variables}
    return HostEntry(name=name, address=name, **known)  # type: ignore[arg-type]


@functools.cache
def with_test_operations() -> Bundle:
    """The zipapp with ``helper_ops`` in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(bundle().code)) as source, zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            text = source.read(name)
            if name == f"{PACKAGE}/helper/operations.py":
                text += b"\nfrom ..helper_ops import TABLE as _MORE, Table\nTABLE = Table({**TABLE, **_MORE})\n"
            if name != f"{PACKAGE}/helper/operations.pyc":
                target.writestr(name, text)
        target.writestr(f"{PACKAGE}/helper_ops.py", (Path(__file__).parent / "helper_ops.py").read_bytes())
    code = buffer.getvalue()
    return Bundle(code=code, digest=hashlib.sha256(code).hexdigest())


@contextlib.contextmanager
def opened(state: Path, code: Bundle | None = None) -> Iterator[Host]:
    """A helper of its own."""
    connector = Connector()
    try:
        with Host.open(entry(state), connector, code) as host:
            yield host
    finally:
        connector.close()


class Shell:
    """An opener that gives the constant command to a shell as sshd would give it to a login shell."""

    def __init__(self, *shell: str, env: Mapping[str, str] | None = None) -> None:
        self.shell = shell
        self.env = env

    def open(self, _entry: HostEntry, command: str = COMMAND) -> ChildPipe:
        return ChildPipe([*self.shell, "-c", command], env=self.env)


def alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    return ProcessId.of(pid) is not None


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Poll until ``condition`` holds; its value."""
    return wait_until(what, condition)
