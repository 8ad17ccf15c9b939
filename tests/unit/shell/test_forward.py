"""A forwarded port takes connections until it is closed."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from typing import TYPE_CHECKING

from clusterddp.errors import UnreachableError
from clusterddp.shell.forward import Forward

if TYPE_CHECKING:
    import pytest

    from clusterddp.hosts.client import Host


def no_host() -> Host:
    raise UnreachableError("gpu01", "is off")


def test_a_connection_that_could_not_be_accepted_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def accept_later(listener: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    said: list[str] = []
    before = set(threading.enumerate())
    with contextlib.closing(Forward(no_host, 0, said.append)) as forward:
        with socket.create_connection(("127.0.0.1", forward.local_port), 60) as client:
            assert client.recv(1) == b""
        port = forward.local_port
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert said == [f"port {port} takes no connection for now: [Errno 24] Too many open files", "gpu01: is off"]


def test_a_connection_that_no_thread_can_serve_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with contextlib.closing(Forward(no_host, 0, said.append)) as forward:

        def start(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", start)
        with socket.create_connection(("127.0.0.1", forward.local_port), 60) as client:
            assert client.recv(1) == b""
