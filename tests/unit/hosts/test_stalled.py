"""Connections whose writes are stuck are closed by one thread, which ends with the last connection."""

from __future__ import annotations

import threading

import pytest

from clusterddp.hosts import stalled


class Connection:
    """An open connection; that it is checked is told, and takes until ``may_go_on``."""

    def __init__(self) -> None:
        self.is_checked, self.may_go_on = threading.Event(), threading.Event()

    def close_if_stalled(self) -> None:
        self.is_checked.set()
        assert self.may_go_on.wait(60)


@pytest.mark.parametrize("opened_meanwhile", [True, False])
def test_who_closes_the_last_connection_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch, *, opened_meanwhile: bool
) -> None:
    """As where a network was lost: one thread closes its lost host, another has opened its own anew."""
    monkeypatch.setattr(stalled, "CHECK_INTERVAL", 0.01)
    watchdog, lost, new = stalled._WriteWatchdog(), Connection(), Connection()
    new.may_go_on.set()
    watchdog.add(lost)
    assert lost.is_checked.wait(60)
    thread = watchdog._thread
    assert thread
    closing = threading.Thread(target=watchdog.remove, args=(lost,), daemon=True)
    closing.start()
    while watchdog._open:
        closing.join(0.01)
    if opened_meanwhile:
        watchdog.add(new)
    lost.may_go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    assert thread.is_alive() == opened_meanwhile
    watchdog.remove(new)
    assert not thread.is_alive()
