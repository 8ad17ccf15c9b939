"""The socket of a connection whose other end may vanish without a word."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import UnreachableError
from clusterddp.hosts.ssh import proxy
from clusterddp.hosts.ssh.connector import Connector
from clusterddp.inventory import HostEntry

if TYPE_CHECKING:
    from clusterddp.hosts.ssh.target import Target


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


class TestANameWithTwoAddresses:
    """A host with IPv6 and IPv4, as the resolver sorts them."""

    @pytest.fixture
    def target(self, monkeypatch: pytest.MonkeyPatch) -> Target:
        found = [(family, socket.SOCK_STREAM, 6, "", (str(family), 22)) for family in (socket.AF_INET6, socket.AF_INET)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
        return Connector(connect_timeout=10)._resolver.route(HostEntry(name="gpu01", address="gpu01")).target

    def test_the_second_has_its_time_where_the_first_never_answers(
        self, target: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, limits = 1000.0, []

        def connect(_sock: object, _address: object, timeout: float) -> socket.socket:
            nonlocal now
            now += timeout
            limits.append(timeout)
            raise TimeoutError

        monkeypatch.setattr(time, "monotonic", lambda: now)
        monkeypatch.setattr(socket, "socket", lambda *_: None)
        monkeypatch.setattr(proxy, "_connect", connect)
        with pytest.raises(UnreachableError, match="no answer from gpu01:22 within 10 s"):
            proxy.connect_tcp(target)
        assert limits == [5, 5]

    @pytest.mark.parametrize("order", [1, -1])
    def test_the_one_that_refuses_is_told_of_where_there_is_no_way_to_the_other(
        self, target: Target, monkeypatch: pytest.MonkeyPatch, order: int
    ) -> None:
        refused, no_way = ConnectionRefusedError(), OSError(errno.EAFNOSUPPORT, "Address family not supported")
        errors = iter([refused, no_way][::order])

        def make(*_: object) -> None:
            raise next(errors)

        monkeypatch.setattr(socket, "socket", make)
        with pytest.raises(UnreachableError, match="connection refused by gpu01:22"):
            proxy.connect_tcp(target)
