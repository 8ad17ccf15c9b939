"""A worker that stops at breakpoints, and an operator's end of its debugger, without any host or helper between."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

from tests.integration.shim_spool import ShimSpool, wait_for
from tests.lab.system import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def stops(spool: ShimSpool) -> list[Path]:
    """The sockets at which workers wait now."""
    return sorted(path.with_suffix("") for path in (spool.folder / "debug").glob("*.json"))


def stop_of(spool: ShimSpool, after: Path | None = None) -> Path:
    """The socket of the one stop, or of the one after another, waited for."""
    seen: list[Path] = []

    def is_there() -> bool:
        seen[:] = stops(spool)  # looked at once: the stop before may end meanwhile
        return len(seen) == 1 and seen != [after]

    wait_for(is_there, "a stop")
    return seen[0]


OPEN: list[socket.socket] = []  # to be closed by who ends the worker


def connect(path: Path) -> socket.socket:
    """A connection to a stop, however long its path."""
    handle = os.open(path, os.O_PATH)
    stream = socket.socket(socket.AF_UNIX)
    OPEN.append(stream)
    stream.settimeout(PATIENCE)
    stream.connect(f"/proc/self/fd/{handle}")
    os.close(handle)
    return stream


def lines_of(stream: socket.socket) -> Iterator[bytes]:
    """What comes, line by line."""
    received = b""
    while data := stream.recv(1 << 16):
        *lines, received = (received + data).split(b"\n")
        yield from lines


class Operator:
    """Who has attached to a stop: what pdb says is read up to its next prompt."""

    def __init__(self, path: Path) -> None:
        self.stream = connect(path)
        self._lines = lines_of(self.stream)
        self.send(attach=True)

    def send(self, **message: Any) -> None:
        self.stream.sendall(json.dumps(message).encode() + b"\n")

    def said(self) -> str:
        """What it says until it asks for a line, or closes."""
        text = ""
        for line in self._lines:
            message: dict[str, str] = json.loads(line)
            text += message.get("out", "")
            if "ask" in message:
                return text
        return text

    def said_until(self, word: str) -> str:
        """What it says, prompts or not, until it has said this."""
        text = ""
        while word not in text:
            more = self.said()
            assert more, text
            text += more
        return text

    def told_something(self) -> None:
        """Until it has said anything."""
        json.loads(next(self._lines))

    def told_running(self) -> None:
        """Until it says that the script runs."""
        assert any("running" in json.loads(line) for line in self._lines)

    def do(self, *lines: str) -> str:
        """Give pdb's commands one by one; what it answers to the last one."""
        text = ""
        for line in lines:
            self.send(line=line)
            text = self.said()
        return text

    def detach(self) -> None:
        """Leave, as a closed terminal or a lost connection does."""
        self.stream.close()
