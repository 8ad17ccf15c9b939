"""What ``clusterddp sync`` prints of its hosts."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING

from clusterddp.cli.actions import sync_action
from clusterddp.sync.result import Changes, HostSync

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *hosts: HostSync) -> list[str]:
    """What a dry run prints whose hosts answer this."""

    @contextlib.contextmanager
    def opened(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(sync=lambda **_: SimpleNamespace(hosts=hosts, digest="d"))

    monkeypatch.setattr(sync_action, "open_cluster", opened)
    assert sync_action.act(None, None, dry_run=True, sync_limit=None, rate=None, spread="auto", take=None) == 0
    return capsys.readouterr().out.splitlines()


def test_a_dry_run_shows_for_each_host_what_is_to_decide(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = Changes(new=("a.csv",))
    same = HostSync(name="gpu00", workdir="/w", digest="")
    other = HostSync(name="gpu01", workdir="/w", digest="", conflicts=("last.pt",))
    third = HostSync(name="gpu02", workdir="/w", digest="", changes=new, sent_bytes=7, conflicts=("last.pt", "x"))
    assert lines(monkeypatch, capsys, same, other, third) == [
        "gpu00: nothing to change",
        "gpu01: 1 to decide",
        "  ! last.pt",
        "gpu02: would be 1 new; 7 bytes to send; 2 to decide",
        "  + a.csv",
        "  ! last.pt",
        "  ! x",
    ]
