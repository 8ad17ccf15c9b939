"""Who gets which unit from whom: whole transfers played, with hosts that fail, lie, leave and come late."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.wire.chunks import CHUNK, Chunk
from clusterddp.sync.transfer.chunk_units import Unit, units_of
from clusterddp.sync.transfer.schedule import (
    MAX_DOWNLOADS,
    MAX_FROM_OPERATOR,
    MAX_UPLOADS,
    OPERATOR,
    Schedule,
    UnitTransfer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CHUNKS = tuple(Chunk(f"{number:064x}", CHUNK) for number in range(24))


def test_units_hold_chunks_that_the_same_hosts_lack() -> None:
    small = [Chunk(f"{number:064x}", 1000) for number in range(6)]
    units, wants = units_of(small, {"a": set(small), "b": {*small[:2], small[4]}, "c": set()})
    assert [unit.ranges for unit in units] == [((0, 2), (4, 5)), ((2, 4), (5, 6))]
    assert wants == {"a": [0, 1], "b": [0], "c": []}
    assert [unit.size for unit in units] == [3000, 3000]


def test_a_unit_is_no_larger_than_a_chunk_may_be() -> None:
    chunks = [Chunk(f"{number:064x}", CHUNK // 3) for number in range(10)]
    units, wants = units_of(chunks, {"a": set(chunks)})
    assert [len(unit.chunks) for unit in units] == [3, 3, 3, 1]
    assert wants == {"a": [0, 1, 2, 3]}


class Play:
    """A transfer to several hosts; what is under way arrives in an order that chance gives."""

    def __init__(self, names: Sequence[str], seed: int = 1, *, spreading: bool = True) -> None:
        units, wants = units_of(CHUNKS, {name: set(CHUNKS) for name in names})
        self.schedule = Schedule(units, wants)
        self.schedule.spreading = spreading
        self.has: dict[str, set[int]] = {name: set() for name in names}
        self.sent: Counter[str | None] = Counter()
        self.under_way: list[UnitTransfer] = []
        self.now = 0.0
        self.chance = random.Random(seed)
        self.all = set(range(len(units)))
        self.refuses: Callable[[UnitTransfer], bool | None] = lambda _order: (
            None
        )  # None: it arrives; else whether reached
        self.late = False  # what was given up may still be under way

    def come(self, *names: str, giving: bool = True) -> None:
        for name in names:
            self.schedule.add(name)
            self.schedule.set_roles(name, gives=giving, takes=True)

    def step(self) -> bool:
        """Give out orders, and let one of those under way come to its end."""
        self.now += 0.1
        orders = self.schedule.orders(self.now)
        self.under_way += orders
        if not self.late:
            self.check_limits()
        if not self.under_way:
            return False
        order = self.under_way.pop(self.chance.randrange(len(self.under_way)))
        reached = self.refuses(order) if order.source is not OPERATOR else None
        if reached is not None:
            assert order.source
            self.schedule.record_failure(order.host, order.unit, order.source, reached=reached)
            return True
        if order.source is not OPERATOR:
            assert order.unit in self.has[order.source]
        self.sent[order.source] += 1
        if self.schedule.record_arrival(order.host, order.unit, self.now):
            self.has[order.host].add(order.unit)
        return True

    def check_limits(self) -> None:
        between = [order for order in self.under_way if order.source is not OPERATOR]
        alone = Counter(order.host for order in self.under_way if order.source is OPERATOR)
        assert all(count <= MAX_UPLOADS for count in Counter(order.source for order in between).values())
        assert all(count <= MAX_DOWNLOADS for count in Counter(order.host for order in between).values())
        assert all(count <= MAX_FROM_OPERATOR for count in alone.values())

    def leave(self, name: str) -> None:
        self.schedule.remove(name)
        del self.has[name]
        self.under_way = [order for order in self.under_way if order.host != name]
        for order in [order for order in self.under_way if order.source == name]:
            self.under_way.remove(order)
            self.schedule.record_failure(order.host, order.unit, name, reached=True)

    def play(self) -> None:
        while self.step():
            pass
        assert self.schedule.done
        assert all(own == self.all for own in self.has.values())


def hosts(count: int) -> list[str]:
    return [f"gpu{number:02d}" for number in range(count)]


def test_the_operator_sends_each_unit_once() -> None:
    play = Play(hosts(16))
    play.come(*hosts(16))
    play.play()
    assert play.sent[OPERATOR] == len(CHUNKS)


def test_without_spreading_the_operator_sends_everything() -> None:
    play = Play(hosts(3), spreading=False)
    play.come(*hosts(3))
    play.play()
    assert play.sent == {OPERATOR: 3 * len(CHUNKS)}


def test_hosts_that_do_not_give_are_given_to() -> None:
    play = Play(hosts(4))
    play.come(*hosts(4)[:2])
    play.come(*hosts(4)[2:], giving=False)
    play.play()
    assert play.sent["gpu02"] == play.sent["gpu03"] == 0
    assert play.sent[OPERATOR] == len(CHUNKS)


def test_where_nobody_gives_the_operator_does() -> None:
    play = Play(hosts(3))
    play.come(*hosts(3), giving=False)
    play.play()
    assert play.sent == {OPERATOR: 3 * len(CHUNKS)}


def test_a_host_that_reaches_nobody_gets_all_from_the_operator_and_is_told_of() -> None:
    play = Play(hosts(6))
    play.refuses = lambda order: False if order.host == "gpu05" else None
    play.come(*hosts(6))
    play.play()
    assert [name for name in hosts(6) if play.schedule.cannot_reach_others(name)] == ["gpu05"]
    assert play.sent[OPERATOR] <= 2 * len(CHUNKS)


def test_a_host_that_gives_nothing_right_costs_no_second_copy() -> None:
    play = Play(hosts(6))
    play.refuses = lambda order: True if order.source == "gpu01" else None
    play.come(*hosts(6))
    play.play()
    assert play.sent["gpu01"] == 0
    assert not any(play.schedule.cannot_reach_others(name) for name in hosts(6))
    assert play.sent[OPERATOR] <= len(CHUNKS) + 2 * 5 * MAX_FROM_OPERATOR  # what it alone held


def test_a_host_that_comes_late_gets_all() -> None:
    play = Play(hosts(3))
    play.come(*hosts(2))
    for _ in range(20):
        play.step()
    play.come("gpu02")
    play.play()


@pytest.mark.parametrize("seed", range(5))
def test_hosts_may_leave_at_any_time(seed: int) -> None:
    play = Play(hosts(8), seed)
    play.come(*hosts(8))
    for name in hosts(8)[:5]:
        for _ in range(play.chance.randrange(40)):
            play.step()
        play.leave(name)
    play.play()


@given(st.integers(0, 1 << 32), st.integers(2, 6), st.sampled_from(["fails", "unreached", "leaves", "silent"]))
def test_whatever_befalls_hosts_the_others_get_all(seed: int, count: int, what: str) -> None:
    play = Play(hosts(count), seed)
    play.late = what == "silent"
    bad = {(play.chance.choice(hosts(count)), play.chance.choice(hosts(count))) for _ in range(count)}
    if what in {"fails", "unreached"}:
        play.refuses = lambda order: what == "fails" if (order.host, order.source) in bad else None
    for name in hosts(count):
        play.come(name, giving=play.chance.random() < 0.8)
        for _ in range(play.chance.randrange(10)):
            play.step()
        if what == "leaves" and len(play.has) > 1 and play.chance.random() < 0.5:
            play.leave(name)
        if what == "silent":
            play.now += 100.0
            play.schedule.replace_late(play.now)
            play.under_way = [one for one in play.under_way if play.chance.random() < 0.5]
    if what == "silent":  # what was never heard of again is taken from elsewhere, or its host is
        while play.step():
            pass
        for name in [name for name, own in play.has.items() if own != play.all]:
            play.leave(name)
        play.step()
        assert play.schedule.done
        return
    play.play()


def test_what_is_late_is_taken_from_another_host() -> None:
    play = Play(hosts(3))
    play.come(*hosts(3))
    while not (stuck := [order for order in play.under_way if order.source == "gpu00"]):
        play.step()
    play.under_way.remove(stuck[0])
    for _ in range(10):
        play.step()
    play.now, play.late = play.now + 1000.0, True
    play.schedule.replace_late(play.now)
    play.play()


@pytest.mark.parametrize("giving", [False, True])
def test_a_host_whose_units_are_always_late_is_sent_each_once(*, giving: bool) -> None:
    play = Play(hosts(3), spreading=giving)
    play.come(*hosts(3), giving=giving)
    sent: Counter[int] = Counter()
    slow: list[int] = []  # on their way to the slow host from the operator, in order
    while play.has["gpu02"] != play.all:
        for order in play.schedule.orders(play.now):
            if (order.host, order.source) == ("gpu02", OPERATOR):
                slow.append(order.unit)
                sent[order.unit] += 1
            else:
                play.under_way.append(order)
        for order in play.under_way:
            play.schedule.record_arrival(order.host, order.unit, play.now)
            play.has[order.host].add(order.unit)
        play.under_way = []
        play.now += 20.0
        play.schedule.replace_late(play.now)
        if slow:
            play.schedule.record_arrival("gpu02", slow[0], play.now)
            play.has["gpu02"].add(slow.pop(0))
    assert sent
    assert set(sent.values()) == {1}


def test_hosts_stay_for_one_that_is_late_from_here_and_still_takes_from_them() -> None:
    play = Play(hosts(3))
    play.come(*hosts(3))
    held: list[UnitTransfer] = []  # what the operator sends to gpu02 arrives last
    while play.has["gpu02"] | {order.unit for order in held} != play.all:
        orders = play.schedule.orders(play.now)
        held += [order for order in orders if (order.host, order.source) == ("gpu02", OPERATOR)]
        play.under_way += [order for order in orders if order not in held]
        slow = next((order for order in play.under_way if order.host == "gpu02"), None)
        for order in [order for order in play.under_way if order.host != "gpu02" or order is slow]:
            play.under_way.remove(order)
            play.schedule.record_arrival(order.host, order.unit, play.now)
            play.has[order.host].add(order.unit)
        play.now += 8.0
        play.schedule.replace_late(play.now)
        assert not play.schedule.is_free("gpu00", all_ready=True)
    assert all(play.has[name] == play.all for name in ("gpu00", "gpu01"))
    play.now += 1000.0  # it hangs
    play.schedule.replace_late(play.now)
    assert play.schedule.is_free("gpu00", all_ready=True)


def test_spreading_is_worth_it_where_it_saves_seconds() -> None:
    units = [Unit(ranges=((0, 1),), chunks=(chunk,)) for chunk in CHUNKS]
    for speed, worth in ((1 << 20, True), (1 << 30, False)):
        schedule = Schedule(units, {name: range(len(units)) for name in hosts(4)})
        for name in hosts(4):
            schedule.add(name)
        schedule.orders(1.0)
        schedule.count_sent(speed)
        assert not schedule.is_spreading_worth(1.1)  # too early to say
        assert schedule.is_spreading_worth(2.0) == worth


def test_a_host_that_nobody_needs_may_end() -> None:
    play = Play(hosts(2))
    play.schedule = Schedule([], {"gpu00": [], "gpu01": []})
    play.schedule.add("gpu00")
    assert play.schedule.is_free("gpu00", all_ready=False)
    play = Play(hosts(2))
    play.come(*hosts(2))
    play.play()
    assert not play.schedule.is_free("gpu00", all_ready=False)  # somebody may come who wants what it has
    assert play.schedule.is_free("gpu00", all_ready=True)
    assert not play.schedule.is_free("gpu77", all_ready=True)
