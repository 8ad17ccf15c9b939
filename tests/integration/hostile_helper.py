"""A host that answers whatever a test gives it: a real child behind a real pipe, in place of the helper."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from clusterddp.hosts.client import Host
from clusterddp.hosts.ssh.pipes import ChildPipe
from clusterddp.hosts.zipapp import MAGIC_WORD
from clusterddp.inventory import HostEntry
from clusterddp.remote.shared.wire.frames import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.ssh import BytePipe

HELLO = {
    "id": 0, "kind": "hello", "protocol": 1, "python": "3.11.2", "executable": "/usr/bin/python3", "state": "/s",
    "home": "/h", "uid": 0, "pid": 1, "boot": "b", "time_ns": 1, "unwritable": "", "remedy": "",
}  # fmt: skip
READY = f"{MAGIC_WORD} have\n".encode()
# Says the first bytes at once, and when a request has come those it begins with, the others, so many times, and the
# last ones. A patient one waits for credit: no more than PATIENCE of the others are on their way. A deaf one stays and
# reads nothing more.
PROGRAM = """
import os, signal, sys
first, begin, rest, last = (bytes.fromhex(word) for word in sys.argv[1:5])
times, patience, deaf = map(int, sys.argv[5:8])
os.write(1, first)
seen = b""
while b'"req"' not in seen:
    seen += os.read(0, 1 << 16) or sys.exit()
granted, seen = seen.count(b'"credit"'), seen[-7:]
os.write(1, begin)
for number in range(times + 1):
    left = rest if number < times else last
    while patience and granted < number - patience:
        seen += os.read(0, 1 << 16) or sys.exit()
        granted, seen = granted + seen.count(b'"credit"'), seen[-7:]
    while left:
        left = left[os.write(1, left):]
if deaf:
    signal.pause()
while os.read(0, 1 << 16):
    pass
"""


class Hostile:
    """An opener of pipes to such a host."""

    def __init__(
        self,
        answer: bytes,
        *,
        times: int = 1,
        first: bytes = READY + encode(HELLO),
        begin: bytes = b"",
        last: bytes = b"",
        patience: int = 0,
        deaf: bool = False,
    ) -> None:
        numbers = [str(int(number)) for number in (times, patience, deaf)]
        self._argv = [sys.executable, "-c", PROGRAM, first.hex(), begin.hex(), answer.hex(), last.hex(), *numbers]

    def open(self, entry: HostEntry, command: str) -> BytePipe:
        """Whatever the command is."""
        del entry, command
        return ChildPipe(self._argv)


@contextlib.contextmanager
def hostile(answer: bytes, **options: Any) -> Iterator[Host]:
    """An open host that answers its first request so."""
    with Host.open(HostEntry(name="bad", address="bad"), Hostile(answer, **options)) as host:
        yield host
