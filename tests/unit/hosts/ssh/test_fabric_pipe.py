"""The pipe over paramiko's channel, where that hangs, and a server that says nothing."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import Any

import paramiko
import pytest

from clusterddp.errors import UnreachableError
from clusterddp.hosts.ssh import fabric_pipe
from clusterddp.hosts.ssh.fabric_pipe import FabricPipe, Link, connect
from clusterddp.hosts.ssh.known_hosts import KnownHosts
from clusterddp.hosts.ssh.pipes import DroppedError
from clusterddp.hosts.ssh.private_keys import Credentials
from tests.unit.hosts.ssh.test_auth import TARGET


def test_a_pipe_to_a_dead_host_is_closed_though_a_write_holds_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_pipe, "_CLOSE_TIMEOUT", 0.01)
    cut = threading.Event()

    class Channel:
        """Its close waits for the write that hangs, as under paramiko's lock of the transport."""

        def recv_stderr(self, _size: int) -> bytes:
            return b""

        def close(self) -> None:
            cut.wait()

    channel: Any = Channel()
    FabricPipe(channel, cut.set).close()
    assert cut.is_set()


def test_a_connection_through_a_jump_host_that_fell_silent_between_keys_is_closed() -> None:
    """paramiko gives up telling it so, when it has waited for the keys for long."""
    told: list[str] = []

    class Channel:
        def shutdown(self, _how: int) -> None:
            told.append("shutdown")
            raise paramiko.SSHException("Key-exchange timed out waiting for key negotiation")

        def close(self) -> None:
            told.append("close")
            raise paramiko.SSHException("Key-exchange timed out waiting for key negotiation")

    Link(paramiko.SSHClient(), Channel()).close()
    assert told == ["shutdown", "close"]


def test_a_server_that_says_nothing_is_told_as_such_and_not_as_one_that_hung_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        target = replace(TARGET, host="127.0.0.1", port=port, connect_timeout=1)
        with pytest.raises(UnreachableError, match="did not answer as an SSH server in time") as caught:
            connect(target, KnownHosts(), 1.5, Credentials(None))
    assert not isinstance(caught.value, DroppedError)  # which would be tried again
