"""The limit of open files, raised for many hosts."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from clusterddp.hosts.file_limit import make_room
from clusterddp.inventory import HostEntry

if TYPE_CHECKING:
    import pytest


def test_a_kept_connection_has_four_files_and_seven_while_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (256, 20_000)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.update(now=wanted))
    make_room([HostEntry(name=f"gpu{number}", address="a") for number in range(1000)])
    soft, hard = limits["now"]
    assert 4 * 1000 + 3 * 48 + 200 < soft < 5000  # 48 hosts are opened at a time
    assert hard == 20_000
