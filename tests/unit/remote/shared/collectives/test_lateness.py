"""Which rank the others wait for: loaders that are slow, cores that are few, buckets, groups, clocks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.shared.collectives.hang_judge import UNDECIDED
from clusterddp.remote.shared.collectives.lateness import (
    ALWAYS,
    IN_TURN,
    NOBODY,
    Clock,
    GroupTimes,
    LateRanks,
    judge,
    lateness_ms,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MS = 1_000_000
START = 1_795_462_968 * 1000 * MS
STEPS = 90


def steps(
    delay: Callable[[int, int], float],
    ranks: Sequence[int] = (0, 1, 2, 3),
    *,
    buckets: Sequence[float] = (0.0,),
    work: float = 100.0,
    count: int = STEPS,
    name: str = "0",
) -> GroupTimes:
    """A group whose ranks wait for each other after the last operation of a step.

    ``delay``: ms that a rank's work takes longer. ``buckets``: ms from the first operation of a step to each.
    """
    times: dict[int, dict[int, int]] = {}
    now, sequence = float(START), 0
    for step in range(count):
        begun = {rank: now + (work + delay(step, rank)) * MS for rank in ranks}
        for after in buckets:
            sequence += 1
            times[sequence] = {rank: round(at + after * MS) for rank, at in begun.items()}
        now = max(begun.values()) + (buckets[-1] + 1) * MS
    return GroupTimes(name, frozenset(ranks), times)


def judged(*groups: GroupTimes, errors: Mapping[int, int] | None = None, **known: Any) -> LateRanks:
    ranks = {rank for group in groups for rank in group.members}
    clocks = {rank: Clock(f"gpu{rank:02}", (errors or {}).get(rank, 50_000)) for rank in ranks}
    return judge(groups, clocks, **known)


def noise(most: float, seed: int = 1) -> Callable[[int, int], float]:
    choose = random.Random(seed)
    return lambda _step, _rank: choose.uniform(0, most)


def test_ten_milliseconds_in_one_ranks_loader_are_named() -> None:
    jitter = noise(1.0)
    late = judged(steps(lambda step, rank: jitter(step, rank) + (10 if rank == 2 else 0)))
    assert (late.kind, late.ranks, late.share) == (ALWAYS, (2,), 1.0)
    assert 9 < late.excess_ms < 10.5


def test_what_each_rank_comes_after_the_first_is_shown() -> None:
    found = lateness_ms(steps(lambda _, rank: 10 if rank == 2 else rank))
    assert found == pytest.approx({0: 0, 1: 1, 2: 10, 3: 3}, abs=0.01)
    assert lateness_ms(steps(lambda *_: 0, count=1)) == {}


@pytest.mark.parametrize("seed", range(25))
def test_equal_ranks_that_share_cores_name_nobody(seed: int) -> None:
    """Four ranks on two cores: in each step two of them, any two, come a few ms after the others."""
    choose = random.Random(seed)
    later = [choose.sample(range(4), 2) for _ in range(STEPS)]
    jitter = noise(2.0, seed)
    late = judged(steps(lambda step, rank: jitter(step, rank) + (6 if rank in later[step] else 0)))
    assert (late.kind, late.ranks) == (NOBODY, ())


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_equal_ranks_with_much_noise_name_nobody(seed: int, ranks: int) -> None:
    assert judged(steps(noise(30.0, seed), range(ranks))).kind == NOBODY


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_chance_in_few_steps_with_long_tails_names_nobody_as_always_late(ranks: int) -> None:
    """Of 200 jobs whose 16 steps vary by 40 ms, none has a rank that is late always."""
    for seed in range(200):
        choose = random.Random(seed)
        group = steps(lambda *_, choose=choose: choose.expovariate(1 / 40), range(ranks), work=500, count=16)
        assert judged(group).kind == NOBODY


def test_two_late_ranks_are_no_one_rank() -> None:
    assert judged(steps(lambda _, rank: 10 if rank in (1, 2) else 0)).kind == NOBODY


def test_ranks_that_are_late_in_turn_are_said_to_be_unless_cores_are_short() -> None:
    group = steps(lambda step, rank: 20 if rank == step % 3 else 0)
    late = judged(group)
    assert (late.kind, late.ranks, late.excess_ms) == (IN_TURN, (0, 1, 2), 20.0)
    assert judged(group, busy=True).kind == UNDECIDED
    assert judged(steps(lambda step, rank: 20 if rank == step % 2 else 0, (0, 1))).kind == NOBODY  # or is it noise?


@pytest.mark.parametrize("late_in", [range(60, 90), range(30)])
def test_a_rank_that_is_late_in_a_third_of_the_time_is_not_late(late_in: range) -> None:
    assert judged(steps(lambda step, rank: 20 if rank == 1 and step in late_in else 0)).kind == NOBODY


@pytest.mark.parametrize(
    ("buckets", "named"),
    [
        ((0, 3, 6), (3,)),  # called without a wait between them
        ((0, 40, 80), (3,)),  # as far apart that a wait might have been between them
        (tuple(0.2 * number for number in range(20)), (3,)),
    ],
)
def test_the_buckets_of_a_step_count_once(buckets: Sequence[float], named: tuple[int, ...]) -> None:
    late = judged(steps(lambda _, rank: 12 if rank == 3 else 0, buckets=buckets))
    assert (late.kind, late.ranks) == (ALWAYS, named)
    if buckets[1] < 12:
        assert late.steps <= STEPS


def test_what_follows_a_wait_at_once_does_not_count_as_a_step() -> None:
    """The loss is reduced after the work, a metric right after it: there nobody is late."""
    group = steps(lambda _, rank: 12 if rank == 3 else 0)
    times: dict[int, dict[int, int]] = {}
    for sequence, called in group.times.items():
        times[2 * sequence] = dict(called)
        times[2 * sequence + 1] = dict.fromkeys(called, max(called.values()) + MS // 2)
    late = judged(GroupTimes("0", group.members, times))
    assert (late.kind, late.ranks, late.excess_ms) == (ALWAYS, (3,), 12.0)


def test_a_pause_of_minutes_hides_no_late_rank() -> None:
    late = judged(steps(lambda step, rank: (12 if rank == 3 else 0) + (60_000 if step == 70 else 0)))
    assert (late.kind, late.ranks) == (ALWAYS, (3,))


def test_clocks_that_are_known_roughly_leave_it_undecided() -> None:
    group = steps(lambda _, rank: 12 if rank == 3 else 0)
    assert judged(group, errors={0: 2 * MS, 3: 2 * MS}).ranks == (3,)
    late = judged(group, errors={0: 6 * MS, 3: 6 * MS})
    assert (late.kind, late.reason) == (UNDECIDED, "the hosts' clocks are known to 12 ms only")
    one_host = {rank: Clock("gpu00", 6 * MS) for rank in range(4)}
    assert judge([group], one_host).ranks == (3,)


def test_what_clocks_drift_during_long_steps_is_allowed_for() -> None:
    def long_steps(late: float) -> GroupTimes:
        return steps(lambda _, rank: late if rank == 3 else 0, work=20_000, count=20)

    assert judged(long_steps(10)).ranks == ()  # clocks may drift by 14 ms while 15 of these steps last
    assert judged(long_steps(25)).ranks == (3,)
    assert judge([long_steps(10)], {rank: Clock("gpu00", MS) for rank in range(4)}).ranks == (3,)


@pytest.mark.parametrize("offset", [-3, 3])
def test_a_clock_that_is_off_by_less_than_is_known_names_nobody(offset: int) -> None:
    group = steps(noise(0.5))
    times = {number: {**called, 1: called[1] + offset * MS} for number, called in group.times.items()}
    late = judged(GroupTimes("0", group.members, times), errors={1: 4 * MS})
    assert late.ranks == ()


def test_who_waits_for_a_late_rank_in_another_group_is_not_named() -> None:
    """Tensor parallel groups 0-1 and 2-3, data parallel groups 0-2 and 1-3: rank 1 makes rank 0 late to rank 2."""
    inner = steps(lambda _, rank: 15 if rank == 1 else 0, (0, 1), name="1")
    others = steps(lambda *_: 0, (2, 3), name="2")
    outer = steps(lambda _, rank: 15 if rank == 0 else 0, (0, 2), name="3")
    last = steps(lambda _, rank: 15 if rank == 1 else 0, (1, 3), name="4")
    late = judged(inner, others, outer, last)
    assert (late.kind, late.ranks) == (ALWAYS, (1,))
    circle = steps(lambda _, rank: 15 if rank == 0 else 0, (0, 1), name="5")
    assert judged(inner, circle).kind == UNDECIDED


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        ({"crowded": ["gpu00"]}, "more ranks than cores on gpu00"),
        ({"silent": [2]}, "rank 2 does not say when it calls operations"),
        ({"silent": [1, 2, 3, 4, 5]}, "ranks 1, 2, 3 and 2 more do not say when they call operations"),
    ],
)
def test_what_leaves_it_undecided(known: dict[str, Any], reason: str) -> None:
    late = judged(steps(lambda _, rank: 12 if rank == 3 else 0), **known)
    assert (late.kind, late.ranks, late.reason) == (UNDECIDED, (), reason)


def test_few_steps_few_seconds_or_few_ranks_leave_it_undecided() -> None:
    def late(_step: int, rank: int) -> float:
        return 12 if rank == 3 else 0

    for group in (steps(late, count=14), steps(late, work=20, count=90)):
        assert judged(group).reason == "too few steps were seen yet"
    assert judged(steps(late, work=500, count=16)).ranks == (3,)
    assert judge([], {0: Clock("gpu00")}).reason == "one rank waits for nobody"
    assert judge([], {}).reason == "no rank says when it calls operations"
    assert judged(GroupTimes("0", frozenset((0, 1)), {})).reason == "too few steps were seen yet"


def test_a_group_with_an_unknown_member_is_left_out() -> None:
    group = steps(lambda _, rank: 12 if rank == 3 else 0)
    assert judge([group], {0: Clock("gpu00"), 1: Clock("gpu01")}).kind == UNDECIDED


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_times_there_is_an_answer(seed: int) -> None:
    choose = random.Random(seed)
    groups = []
    for name in range(choose.randint(0, 4)):
        members = choose.sample(range(6), choose.randint(1, 6))
        times = {
            choose.randint(0, 300): {
                choose.randint(0, 7): choose.choice([0, START, -(1 << 70), choose.randint(0, 1 << 63)])
                for _ in range(choose.randint(0, 9))
            }
            for _ in range(choose.randint(0, 120))
        }
        groups.append(GroupTimes(str(name), frozenset(members), times))
        lateness_ms(groups[-1])
    clocks = {rank: Clock(f"gpu0{rank % 2}", choose.randint(0, 1 << 40)) for rank in range(choose.randint(0, 6))}
    assert judge(groups, clocks).kind in (ALWAYS, IN_TURN, NOBODY, UNDECIDED)
