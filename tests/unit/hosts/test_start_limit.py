"""A helper gets the time that its host's login, and this process's own lateness, are measured to need."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.hosts import large_packets, start_limit
from clusterddp.hosts.large_packets import timeout_error
from clusterddp.hosts.start_limit import MAX_LATE, StartLimit
from clusterddp.inventory import HostEntry


class Clock:
    """A virtual clock, for the event too that a limit waits for; each wait is late by the next of ``late``."""

    def __init__(self, *late: float) -> None:
        self.now, self._late = 0.0, [*late]
        self.during: dict[float, Any] = {}  # what is called once so much time has passed

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds + (self._late.pop(0) if self._late else 0.0)
        for due in [due for due in self.during if due <= self.now]:
            self.during.pop(due)()
        return False


def run_out(monkeypatch: pytest.MonkeyPatch, clock: Clock, *, seconds: float = 30.0, login: float = 0.1) -> StartLimit:
    """A limit that has been waited for to its end."""
    monkeypatch.setattr(start_limit, "time", clock)
    monkeypatch.setattr(
        start_limit,
        "threading",
        SimpleNamespace(Thread=threading.Thread, Event=lambda: SimpleNamespace(wait=clock.wait)),
    )
    limit = StartLimit(lambda: None, seconds, login)
    clock.during = {due: partial(call, limit) for due, call in clock.during.items()}
    limit._watch()
    assert limit.passed
    return limit


@pytest.mark.parametrize(("login", "seconds"), [(0.1, 30), (3.0, 30), (6.0, 60), (12.0, 120), (500.0, 120)])
def test_a_slow_login_gives_the_helper_more_time_up_to_two_minutes(
    monkeypatch: pytest.MonkeyPatch, login: float, seconds: float
) -> None:
    clock = Clock()
    run_out(monkeypatch, clock, login=login)
    assert clock.now == seconds


def test_the_time_for_which_this_process_did_not_run_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(7.0, 0.0, 7.0)
    limit = run_out(monkeypatch, clock)
    assert clock.now == 30 + 14
    assert limit.cause == "this machine is too busy: it held up this program for another 14 s"


def test_a_process_that_is_always_late_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(*[4.0] * 1000)
    run_out(monkeypatch, clock)
    assert clock.now <= 30 + MAX_LATE + 2 * 4.0


def test_after_a_long_pause_an_answer_that_has_arrived_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(3600.0)
    run_out(monkeypatch, clock)
    assert clock.now == 3600 + 30


def test_each_answer_of_the_host_renews_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.during = {20.0: StartLimit.renew, 45.0: StartLimit.renew}
    run_out(monkeypatch, clock)
    assert clock.now == 45 + 30


def test_a_block_that_ends_in_time_closes_nothing() -> None:
    closed: list[int] = []
    with StartLimit(lambda: closed.append(1), 30.0, 0.1) as limit:
        pass
    limit._thread.join(10)
    assert not limit._thread.is_alive()
    assert (closed, limit.passed) == ([], False)


@pytest.mark.parametrize(
    ("login", "late", "message"),
    [
        (0.1, 0.0, "gpu01: the helper did not start within 30 s"),
        (
            9.0,
            0.0,
            (
                "gpu01: the helper did not start within 90 s: its login took 9 s: the host, the network to it or this"
                " machine is too busy; try again, with fewer hosts at once if that does not help"
            ),
        ),
        (
            0.1,
            8.0,
            (
                "gpu01: the helper did not start within 30 s: this machine is too busy: it held up this"
                " program for another 8 s; try again, with fewer hosts at once if that does not help"
            ),
        ),
    ],
)
def test_the_message_names_the_likely_cause(
    monkeypatch: pytest.MonkeyPatch, login: float, late: float, message: str
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(large_packets, "largest_passing_size", lambda *given: asked.append(given[2]))
    limit = run_out(monkeypatch, Clock(late), login=login)
    error = timeout_error(HostEntry(name="gpu01", address="127.0.0.1"), SimpleNamespace(), limit)
    assert str(error) == message
    assert asked == [limit.slowness]  # messages get as much longer
