"""The socket of a connection whose other end may vanish without a word."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace

import pytest

from clusterddp.hosts.ssh import proxy
from clusterddp.hosts.ssh.connector import Connector
from clusterddp.inventory import HostEntry


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_the_kernel_ends_a_connection_over_which_data_does_not_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a laptop roams: the other end is gone, and so is what would tell us so."""
    assert 30_000 < proxy._KEEPALIVE["TCP_USER_TIMEOUT"] < 60_000  # later than a silent host is given up
    monkeypatch.setitem(proxy._KEEPALIVE, "TCP_USER_TIMEOUT", 200)
    target = Connector()._resolver.route(HostEntry(name="gpu01", address="127.0.0.1")).target
    with (
        socket.create_server(("127.0.0.1", 0)) as server,  # which reads nothing
        proxy.connect_tcp(replace(target, port=server.getsockname()[1])) as sock,
    ):
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while sock.send(b"x" * 65536):
                pass
        sock.settimeout(60)
        with pytest.raises(OSError, match="timed out") as caught:
            sock.recv(1)
        assert caught.value.errno  # not the time limit of this test
