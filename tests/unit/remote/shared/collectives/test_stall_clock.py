"""For how long a run hangs: looks as hosts send them, one after the other, at the clock of the stall guard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.collectives.hang_judge import MISSING
from clusterddp.remote.shared.collectives.stall_clock import Look, StallClock, per_second
from clusterddp.remote.shared.collectives.trace_records import READ, SLEEP, ThreadWait
from tests.unit.remote.shared.collectives.traces_made import look

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT = 40.0
HANGS = {0: "ar4 ar4 ar4*", 1: "ar4 ar4"}


def seen(at: float, ranks: Mapping[int, str] = HANGS, *, world: int = 2, debugged: bool = False) -> Look:
    return Look(at=at, world_size=world, traces=tuple(look(ranks)), debugged=debugged)


def stalls(*looks: Look) -> list[float]:
    """The times at which the run counts as stalled."""
    clock = StallClock(LIMIT)
    return [one.at for one in looks if clock.see(one)]


def test_a_run_that_hangs_in_all_looks_is_stalled_when_the_limit_is_over() -> None:
    assert StallClock(LIMIT).interval == 10.0
    assert stalls(*(seen(at) for at in range(0, 60, 10))) == [40, 50]


def test_what_is_found_is_the_judges() -> None:
    clock = StallClock(LIMIT)
    (finding,) = [found for at in range(0, 50, 10) if (found := clock.see(seen(at)))]
    assert (finding.kind, finding.ranks, finding.waiting, finding.sequence) == (MISSING, (1,), (0,), 3)


def test_a_run_that_advances_is_never_stalled_however_little_it_says() -> None:
    steps = [{0: "ar4 " * number + "ar4*", 1: "ar4 " * number} for number in range(1, 12)]
    assert stalls(*(seen(10.0 * at, ranks) for at, ranks in enumerate(steps))) == []


@pytest.mark.parametrize("ranks", [{0: "ar4 ar4", 1: "ar4 ar4"}, {0: "[dumb]", 1: "[dumb]"}, {}])
def test_a_run_in_which_nobody_waits_is_never_stalled(ranks: dict[int, str]) -> None:
    assert stalls(*(seen(at, ranks) for at in range(0, 400, 10))) == []


def test_one_step_starts_the_clock_anew() -> None:
    on = {0: "ar4 ar4 ar4 ar4*", 1: "ar4 ar4 ar4"}
    looks = [*(seen(at) for at in range(0, 40, 10)), *(seen(at, on) for at in range(40, 100, 10))]
    assert stalls(*looks) == [80, 90]


def test_a_rank_at_work_in_one_interval_starts_the_clock_anew() -> None:
    at_work = tuple(trace._replace(cpu_ms=trace.cpu_ms + 5000 * trace.rank) for trace in seen(0).traces)
    looks = [*(seen(at) for at in range(0, 40, 10)), *(seen(at)._replace(traces=at_work) for at in range(40, 100, 10))]
    assert stalls(*looks) == [70 + 10, 90]


def test_a_rank_at_work_for_whom_only_the_one_to_blame_waits_is_no_stall() -> None:
    ranks = {0: "1/train: ar4 ar4*", 1: "[store:TCPStore__wait] 1/train: ar4", 2: "", 3: "1/train: ar4 ar4*"}
    idle = [seen(at, ranks, world=4) for at in range(0, 60, 10)]
    assert stalls(*idle) == [40, 50]
    generates = [
        one._replace(traces=tuple(each._replace(cpu_ms=int(one.at) * 1000 * (each.rank == 2)) for each in one.traces))
        for one in idle
    ]
    assert stalls(*generates) == []


@pytest.mark.parametrize(
    "ranks", [{0: "[store:TCPStore__wait]", 1: "[store:TCPStore__get]"}, {0: "ar4*", 1: "[store:TCPStore__wait]"}]
)
def test_a_run_that_goes_on_by_waits_at_the_store_is_no_stall(ranks: dict[int, str]) -> None:
    looks = [seen(at, ranks) for at in range(0, 60, 10)]
    goes_on = [
        one._replace(traces=tuple(each._replace(calls=(int(one.at),) * len(each.calls)) for each in one.traces))
        for one in looks
    ]
    assert stalls(*goes_on) == []


def test_a_rank_at_work_of_which_a_thread_waits_at_the_store_is_no_stall() -> None:
    ranks = {0: "1/train: ar4 ar4*", 1: "1/train: ar4", 2: "[store:TCPStore__wait]", 3: "1/train: ar4 ar4*"}
    idle = [seen(at, ranks, world=4) for at in range(0, 60, 10)]
    assert stalls(*idle) == [40, 50]
    at_work = [
        one._replace(traces=tuple(each._replace(cpu_ms=int(one.at) * 1000 * (each.rank == 2)) for each in one.traces))
        for one in idle
    ]
    assert stalls(*at_work) == []


def test_a_thread_that_wakes_up_once_in_a_while_is_no_work() -> None:
    (before,), (after,) = look({1: "ar4"}), look({1: "[busy] ar4"}, second=True)
    assert after.cpu_ms - per_second([before], [after], 60.0)[0].cpu_ms == (900 - 10) // 60
    assert after.cpu_ms - per_second([before], [after], 1.0)[0].cpu_ms == 900 - 10


@pytest.mark.parametrize(
    ("how", "seconds", "woken", "counted"),
    [(READ, 60.0, 2, 0), (READ, 60.0, 5, 3), (READ, 10.0, 1, 1), (SLEEP, 60.0, 100, 1)],
)
def test_a_thread_that_is_woken_by_its_timer_counts_by_the_second(
    how: str, seconds: float, woken: int, counted: int
) -> None:
    (trace,) = look({1: "ar4"})
    before, after = (trace._replace(threads=(ThreadWait(1001, how, times),)) for times in (7, 7 + woken))
    (found,) = per_second([before], [after], seconds)
    assert after.threads[0].switches - found.threads[0].switches == counted


@pytest.mark.parametrize("world", [0, 3])
def test_hosts_that_do_not_agree_on_the_number_of_ranks_decide_nothing(world: int) -> None:
    looks = [*(seen(at) for at in range(0, 40, 10)), seen(40, world=world), *(seen(at) for at in range(50, 100, 10))]
    assert stalls(*looks) == [90]


def test_a_look_that_is_left_out_does_no_harm_and_a_long_gap_proves_nothing() -> None:
    assert stalls(*(seen(at) for at in (0, 20, 30, 40))) == [40]
    assert stalls(*(seen(at) for at in (0, 10, 20, 50, 60, 70))) == []


def test_somebody_who_debugs_a_worker_keeps_the_run_from_being_stalled() -> None:
    assert stalls(*(seen(at, debugged=True) for at in range(0, 400, 10))) == []
    traced = tuple(trace._replace(state="t") if trace.rank else trace for trace in seen(0).traces)
    assert stalls(*(seen(at)._replace(traces=traced) for at in range(0, 400, 10))) == []


def test_a_stopped_rank_that_nobody_debugs_does_hang() -> None:
    assert stalls(*(seen(at, {0: "ar4 ar4*", 1: "[stopped]"}) for at in range(0, 50, 10))) == [40]


def test_workers_that_were_started_anew_start_the_clock_anew() -> None:
    again = {rank: f"[start:1] {text}" for rank, text in HANGS.items()}
    looks = [*(seen(at) for at in range(0, 40, 10)), *(seen(at, again) for at in range(40, 100, 10))]
    assert stalls(*looks) == [80, 90]


def test_a_clock_that_begins_anew_forgets_what_it_saw() -> None:
    clock = StallClock(LIMIT)
    assert [bool(clock.see(seen(at))) for at in range(0, 50, 10)] == [False] * 4 + [True]
    clock.reset()
    assert not clock.started
    assert [bool(clock.see(seen(at))) for at in range(50, 100, 10)] == [False] * 4 + [True]


def test_a_long_limit_has_a_look_each_minute() -> None:
    assert StallClock(3600.0).interval == 60.0
