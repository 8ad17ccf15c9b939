"""The connections of a command are ended while others are still opened."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clusterddp.hosts import connections
from clusterddp.hosts.connections import Connections
from clusterddp.inventory import HostEntry

if TYPE_CHECKING:
    import pytest


def test_hosts_that_come_during_the_end_do_not_disturb_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def open_host(entry: HostEntry, _opener: object) -> Any:
        def close() -> None:
            if entry.name == "gpu00":  # as a thread that was connecting at a Ctrl-C
                late = threading.Thread(target=opened.open, args=(HostEntry(name="gpu02", address="gpu02"),))
                late.start()
                late.join(10)
            ended.append(entry.name)

        return SimpleNamespace(name=entry.name, noise="", unwritable=None, lost=False, close=close)

    monkeypatch.setattr(connections, "Host", SimpleNamespace(open=open_host))
    opened = Connections(SimpleNamespace(close=lambda: ended.append("all")), print)  # type: ignore[arg-type]
    for name in ("gpu00", "gpu01"):
        opened.open(HostEntry(name=name, address=name))
    opened.close()
    assert ended == ["gpu00", "gpu01", "all"]  # the connector ends what comes late
