"""How ranks find rank 0: on a bad network, with recordings, with mistakes. Pure, in virtual time."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.discover.announcer import MAX_REFUSALS, SILENCE_TIMEOUT, Announcer
from clusterddp.discover.message import MAX_DATAGRAM_BYTES, Message
from clusterddp.discover.outcome import Failed, Met
from clusterddp.discover.seeker import MAX_ANNOUNCERS, MAX_ANSWERS, Seeker
from tests.unit.segment_simulated import ADDRESS, PORT, Simulation, Weather

if TYPE_CHECKING:
    Parts = list[Announcer | Seeker]

FOUND = Met(address=ADDRESS, port=PORT)
SEEDS = st.integers(0, 2**32)


def started(
    seed: int, weather: Weather, starts: list[float], timeout: float
) -> tuple[Simulation, list[Announcer | Seeker]]:
    """A simulation in which rank i starts at ``starts[i]``; the ranks appear in the list then, in any order."""
    simulation = Simulation(Random(seed), weather)
    parts: Parts = []
    size = len(starts)

    def start(rank: int) -> None:
        announcer = simulation.announcer
        parts.append(announcer(size, timeout=timeout) if not rank else simulation.seeker(rank, size, timeout=timeout))

    for rank, time in enumerate(starts):
        simulation.at(time, partial(start, rank))
    return simulation, parts


@settings(deadline=None, max_examples=40)
@given(
    seed=SEEDS,
    starts=st.lists(st.floats(0, 20), min_size=1, max_size=8),
    loss=st.floats(0, 0.3),
    doubled=st.floats(0, 0.5),
    delay=st.floats(0, 0.3),
)
def test_all_meet_though_datagrams_are_lost_doubled_and_reordered(
    seed: int, starts: list[float], loss: float, doubled: float, delay: float
) -> None:
    simulation, parts = started(seed, Weather(loss=loss, doubled=doubled, delay=delay), starts, 120)
    simulation.run()
    assert [part.outcome for part in parts] == [FOUND] * len(starts)


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, starts=st.lists(st.floats(0, 5), min_size=2, max_size=5), loss=st.floats(0.5, 1.0))
def test_whatever_is_lost_nobody_leaves_before_rank_0_has_heard_all(
    seed: int, starts: list[float], loss: float
) -> None:
    simulation, parts = started(seed, Weather(loss=loss, delay=0.5), starts, 8)
    simulation.run()
    (master,) = [part for part in parts if isinstance(part, Announcer)]
    others = [part for part in parts if not isinstance(part, Announcer)]
    assert all(part.outcome for part in parts)
    if any(isinstance(part.outcome, Met) for part in others):
        assert master.outcome == FOUND
    if master.outcome == FOUND:
        assert all(master.nonce in part._announcements for part in others)


@given(seed=SEEDS)
@settings(deadline=None, max_examples=8)
def test_on_a_good_network_it_takes_a_moment_after_the_last_has_come(seed: int) -> None:
    simulation, _ = started(seed, Weather(), [3.0, 0.0, 7.0], 60)
    simulation.run()
    assert simulation.now < 7.1


@given(seed=SEEDS, loss=st.floats(0, 0.3))
@settings(deadline=None, max_examples=10)
def test_a_second_rank_0_and_the_first_are_both_told(seed: int, loss: float) -> None:
    simulation = Simulation(Random(seed), Weather(loss=loss))
    first = simulation.announcer(3, address="10.0.0.1")
    waiting = simulation.seeker(1, 3, timeout=60)
    simulation.run(until=2)
    second = simulation.announcer(3, address="10.0.0.9")
    simulation.run()
    for part, other in ((first, "10.0.0.9"), (second, "10.0.0.1")):
        assert isinstance(part.outcome, Failed)
        assert part.outcome.message == f"another rank 0 with this id is at {other}"
    assert isinstance(waiting.outcome, Failed)


@pytest.mark.parametrize("key", [None, b"k" * 16])
@given(seed=SEEDS)
@settings(deadline=None, max_examples=8)
def test_recordings_of_an_earlier_job_decide_nothing(key: bytes | None, seed: int) -> None:
    earlier = Simulation(Random(seed), Weather(loss=0.1), key=key)
    earlier.announcer(3, address="10.0.0.66")
    for rank in (1, 2):
        earlier.seeker(rank, 3)
    earlier.run()
    now = Simulation(Random(seed + 1), Weather(), key=key)
    master, one = now.announcer(3), now.seeker(1, 3, timeout=200)
    for number, datagram in enumerate(earlier.recorded * 3):
        now.at(number * 0.03, partial(now.send, datagram))
    now.run(until=60)
    assert (master.outcome, one.outcome) == (None, None)
    assert master.missing(now.now) == [2]
    two = now.seeker(2, 3)
    now.run()
    assert [part.outcome for part in (master, one, two)] == [FOUND] * 3


@given(seed=SEEDS)
@settings(deadline=None, max_examples=8)
def test_recordings_of_this_job_keep_no_dead_rank_alive(seed: int) -> None:
    simulation = Simulation(Random(seed), Weather())
    master, dies = simulation.announcer(3), simulation.seeker(1, 3)
    simulation.run(until=3)
    simulation.kill(dies)
    for number, datagram in enumerate(list(simulation.recorded) * 10):
        simulation.at(3 + number * 0.1, partial(simulation.send, datagram))
    simulation.run(until=25)
    assert master.missing(simulation.now) == [1, 2]


@given(seed=SEEDS)
@settings(deadline=None, max_examples=8)
def test_recordings_of_an_earlier_process_keep_no_dead_rank_alive(seed: int) -> None:
    simulation = Simulation(Random(seed), Weather(), key=b"k" * 16)
    master, first = simulation.announcer(3, timeout=200), simulation.seeker(1, 3)
    simulation.run(until=10)
    simulation.kill(first)
    recorded = list(simulation.recorded)
    second = simulation.seeker(1, 3)
    simulation.run(until=20)
    assert master.missing(simulation.now) == [2]
    simulation.kill(second)
    for number, datagram in enumerate(recorded * 3):
        simulation.at(20 + number * 15 / len(recorded), partial(simulation.send, datagram))
    simulation.run(until=20 + SILENCE_TIMEOUT + 1)
    assert master.missing(simulation.now) == [1, 2]


def test_a_rank_that_died_and_came_back_is_met() -> None:
    simulation = Simulation(Random(1), Weather(loss=0.2))
    master, dies = simulation.announcer(3), simulation.seeker(1, 3)
    simulation.run(until=3)
    simulation.kill(dies)
    parts: Parts = [master, simulation.seeker(1, 3)]
    simulation.run(until=10)
    parts.append(simulation.seeker(2, 3))
    simulation.run()
    assert [part.outcome for part in parts] == [FOUND] * 3
    assert master.notices == []


@given(seed=SEEDS, loss=st.floats(0, 0.2))
@settings(deadline=None, max_examples=10)
def test_of_two_machines_with_one_rank_the_second_is_refused(seed: int, loss: float) -> None:
    simulation = Simulation(Random(seed), Weather(loss=loss))
    master, first = simulation.announcer(3), simulation.seeker(1, 3)
    simulation.run(until=5)
    second = simulation.seeker(1, 3)
    simulation.run(until=40)
    refused = [part.outcome for part in (first, second) if part.outcome]
    assert [one.message for one in refused if isinstance(one, Failed)] == ["rank 1 is taken by 10.0.1.1"]
    last = simulation.seeker(2, 3)
    simulation.run()
    assert (master.outcome, last.outcome) == (FOUND, FOUND)
    assert master.notices == ["rank 1 at 10.0.1.1 is refused: 10.0.1.1 has that rank"]


def test_another_world_size_is_refused_and_both_say_so() -> None:
    simulation = Simulation(Random(1), Weather())
    master, wrong = simulation.announcer(2, timeout=20), simulation.seeker(1, 3)
    simulation.run(until=5)
    assert isinstance(wrong.outcome, Failed)
    assert wrong.outcome.message == "rank 0 is told a world size of 2, this one 3"
    assert master.notices == ["rank 1 at 10.0.1.1 is told a world size of 3, not 2"]
    right = simulation.seeker(1, 2)
    simulation.run()
    assert (master.outcome, right.outcome) == (FOUND, FOUND)


def test_a_stranger_without_a_key_fills_neither_memory_nor_terminal() -> None:
    master = Announcer(nonce="0" * 16, world_size=3, address=ADDRESS, port=PORT, now=0.0, timeout=60)
    simulation = Simulation(Random(1), Weather())
    seeker = simulation.seeker(1, 3)
    for number in range(10_000):
        stranger = f"{number + 1:016x}"
        master.receive(Message(kind="answer", sender=stranger, to=master.nonce, rank=1, world_size=4), 0.1)
        seeker.receive(Message(kind="announce", sender=stranger, world_size=3, turn=1), 0.1)
    assert len(master.notices) == len(master._refused) == MAX_REFUSALS
    assert len(seeker._announcements) == MAX_ANNOUNCERS
    assert len(seeker._answers) <= MAX_ANSWERS


def test_recordings_of_many_rank_0s_behind_each_announcement_keep_no_rank_from_the_live_one() -> None:
    master = Announcer(nonce="f" * 16, world_size=1000, address=ADDRESS, port=PORT, now=0.0, timeout=60)
    seeker = Seeker(
        nonce="e" * 16, rank=1, world_size=1000, address="10.0.1.1", now=0.0, timeout=60, random_number=lambda: 0.5
    )
    recorded = [
        Message(kind="announce", sender=f"{number:016x}", world_size=1000, turn=3) for number in range(MAX_ANNOUNCERS)
    ]
    recorded += master.tick(0.0)
    for step in range(1, 6000):
        now = step * 0.005
        for message in master.tick(now):
            for played in (message, *recorded):
                seeker.receive(played, now)
        for answer in seeker.tick(now):
            master.receive(answer, now)
    assert 1 not in master.missing(30.0)


def test_a_rank_that_gives_up_is_missing_at_once() -> None:
    simulation = Simulation(Random(1), Weather())
    master, impatient = simulation.announcer(3), simulation.seeker(1, 3, timeout=4)
    simulation.run(until=5)
    assert isinstance(impatient.outcome, Failed)
    said = "rank 0 at 10.0.0.1 was heard, but rank 2 of 3 did not answer it within 4 s"
    assert impatient.outcome.message == said
    assert master.missing(simulation.now) == [1, 2]


def test_who_is_missing_is_named_and_many_are_counted() -> None:
    simulation = Simulation(Random(1), Weather())
    master, one = simulation.announcer(30, timeout=5), simulation.seeker(3, 30, timeout=4)
    simulation.run()
    assert isinstance(master.outcome, Failed)
    numbers = ", ".join(str(rank) for rank in range(1, 17))
    assert master.outcome.message == f"ranks {numbers} and 13 more of 30 did not answer within 5 s"
    assert isinstance(one.outcome, Failed)
    assert one.outcome.message.startswith("rank 0 at 10.0.0.1 was heard, but ranks 1, 2, 4, ")
    assert one.outcome.message.endswith(" and 12 more of 30 did not answer it within 4 s")


def test_a_rank_that_is_never_heard_is_told_so() -> None:
    simulation = Simulation(Random(1), Weather())
    alone = simulation.seeker(1, 2, timeout=3)
    simulation.run()
    assert isinstance(alone.outcome, Failed)
    assert alone.outcome.message == "rank 0 was not heard within 3 s"
    deaf = Announcer(nonce=simulation.nonce(), world_size=2, address=ADDRESS, port=PORT, now=3.0, timeout=60)
    mute = simulation.seeker(1, 2, timeout=3)
    for time in range(3, 6):
        for message in deaf.tick(time):
            mute.receive(message, time)
        mute.tick(time + 0.5)
    mute.tick(6.5)
    assert isinstance(mute.outcome, Failed)
    assert mute.outcome.message == "rank 0 at 10.0.0.1 is heard but did not hear this one within 3 s"


def test_many_machines_meet_in_datagrams_that_fit() -> None:
    simulation = Simulation(Random(1), Weather())
    others = [simulation.seeker(rank, 40) for rank in range(1, 40)]
    parts: Parts = [simulation.announcer(40), *others]
    simulation.run()
    assert all(part.outcome == FOUND for part in parts)
    assert max(map(len, simulation.recorded)) <= MAX_DATAGRAM_BYTES
