"""A rehearsal on busy hosts gets the time that they are measured to need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.doctor import rehearsal
from clusterddp.doctor.rehearsal import ProgramResult, measure_slowness
from clusterddp.errors import HelperError
from clusterddp.hosts.start_limit import MAX_SLOWNESS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that has passed."""
    passed = [0.0]
    monkeypatch.setattr(rehearsal, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    return passed


@pytest.mark.parametrize(
    ("seconds", "slowness"), [([0.0], 1), ([0.05], 1), ([0.4], 4), ([0.01, 0.3], 3), ([99.0], MAX_SLOWNESS), ([], 1)]
)
def test_the_slowest_host_tells_how_much_longer_everything_takes(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, seconds: list[float], slowness: float
) -> None:
    def host(number: int, took: float) -> Any:
        def call(operation: str, *, timeout: float) -> dict[str, int]:
            assert (operation, timeout > 0) == ("clock", True)
            clock[0] += took
            return {"time_ns": 1}

        return SimpleNamespace(name=f"gpu{number}", call=call)

    def each_in_turn(hosts: list[Any], work: Any) -> list[Any]:
        return [SimpleNamespace(value=work(host)) for host in hosts]

    monkeypatch.setattr(rehearsal, "each", each_in_turn)  # the clock is one for all
    assert measure_slowness([host(number, took) for number, took in enumerate(seconds)]) == pytest.approx(slowness)


def test_a_host_that_does_not_answer_is_as_slow_as_can_be() -> None:
    def call(*_: Any, **__: Any) -> None:
        raise HelperError("gpu01", "no answer")

    silent: Any = SimpleNamespace(name="gpu01", call=call)
    assert measure_slowness([silent]) == MAX_SLOWNESS


@pytest.mark.parametrize(("took", "limit"), [(2.0, 20.0), (15.0, 75.0)])
def test_a_program_may_take_five_times_as_long_as_all_hosts_took_to_report(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, took: float, limit: float
) -> None:
    limits: list[float] = []

    def report(timeout: float) -> bool:
        assert timeout == 20.0
        clock[0] += took
        return True

    def end(timeout: float) -> bool:
        limits.append(timeout)
        return True

    follower = SimpleNamespace(
        begun=SimpleNamespace(wait=report),
        ended=SimpleNamespace(wait=end),
        result=lambda: ProgramResult(left={}),
    )
    plan = SimpleNamespace(run="r", attempt=1, record=None)
    monkeypatch.setattr(rehearsal, "_plan_run", lambda *_: plan)
    monkeypatch.setattr(rehearsal, "_BackgroundFollower", lambda _: follower)
    monkeypatch.setattr(rehearsal, "over_ssh", SimpleNamespace(launch=lambda *_: SimpleNamespace(spools={})))
    cluster: Any = None
    done = rehearsal.run_program(cluster, [], "rehearse.py", {}, limit=20.0, start=20.0)
    assert (done.late, limits) == (False, [limit])
