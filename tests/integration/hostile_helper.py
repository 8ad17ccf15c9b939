"""A host that answers whatever a test gives it: a real child behind a real pipe, in place of the helper."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from clusterddp.hosts.client import Host
from clusterddp.hosts.ssh.pipes import ChildPipe
from clusterddp.hosts.zipapp import MAGIC_WORD
from clusterddp.inventory import HostEntry
from clusterddp.remote.shared.frames import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.ssh import BytePipe

HELLO = {
    "id": 0, "kind": "hello", "protocol": 1, "python": "3.11.2", "executable": "/usr/bin/python3", "state": "/s",
    "home": "/h", "uid": 0, "pid": 1, "boot": "b", "time_ns": 1,
}  # fmt: skip
READY = f"{MAGIC_WORD} have\n".encode()
# Says the first bytes at once, the others, so many times, when a request has come.
PROGRAM = """
import os, sys
first, rest, times = bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3])
os.write(1, first)
seen = b""
while b'"req"' not in seen:
    seen += os.read(0, 1 << 16) or sys.exit()
for _ in range(times):
    left = rest
    while left:
        left = left[os.write(1, left):]
while os.read(0, 1 << 16):
    pass
"""


class Hostile:
    """An opener of pipes to such a host."""

    def __init__(self, answer: bytes, *, times: int = 1, first: bytes = READY + encode(HELLO)) -> None:
        self._argv = [sys.executable, "-c", PROGRAM, first.hex(), answer.hex(), str(times)]

    def open(self, entry: HostEntry, command: str) -> BytePipe:
        """Whatever the command is."""
        del entry, command
        return ChildPipe(self._argv)


@contextlib.contextmanager
def hostile(answer: bytes, **options: Any) -> Iterator[Host]:
    """An open host that answers its first request so."""
    with Host.open(HostEntry(name="bad", address="bad"), Hostile(answer, **options)) as host:
        yield host
