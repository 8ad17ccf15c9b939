"""How long a worker may take to end, once SIGTERM was sent."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.system.bootstrap import write_json
from clusterddp.remote.worker import grace as module
from clusterddp.remote.worker.grace import TIMER, Grace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "CHECK_INTERVAL", 0.02)
    monkeypatch.setattr(module, "LOST_GRACE", 0.1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [TIMER])
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    while signal.sigtimedwait([TIMER], 0):
        pass
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [TIMER])


def looks(grace: Grace, seconds: float) -> bool:
    """Whether it is over within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if signal.sigtimedwait([TIMER], seconds) and grace.is_over():
            return True
    return False


def test_it_is_the_runs_own(tmp_path: Path) -> None:
    grace, began = Grace(str(tmp_path), 0.3), time.monotonic()
    grace.begin()
    grace.begin()  # another SIGTERM prolongs nothing
    assert looks(grace, 10.0)
    assert time.monotonic() - began >= 0.3


def test_it_is_short_once_a_host_of_the_workers_round_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "peers.json")
    write_json(path, {"excluded": ["gpu01"]})
    grace = Grace(str(tmp_path), 1000.0)  # of a worker that was started without that host
    grace.begin()
    assert not looks(grace, 0.3)
    write_json(path, {"excluded": ["gpu01", "gpu02"]})
    assert looks(grace, 10.0)


@pytest.mark.parametrize("damaged", ["{", "[]", '{"excluded": 1}'])
def test_what_is_damaged_shortens_nothing(tmp_path: Path, damaged: str) -> None:
    grace = Grace(str(tmp_path), 1000.0)
    (tmp_path / "peers.json").write_text(damaged)
    grace.begin()
    assert not looks(grace, 0.3)
