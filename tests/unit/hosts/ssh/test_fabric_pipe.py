"""The pipe over paramiko's channel, where that hangs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from clusterddp.hosts.ssh import fabric_pipe
from clusterddp.hosts.ssh.fabric_pipe import FabricPipe

if TYPE_CHECKING:
    import pytest


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
