"""Who is measured with whom: rounds in which no host is twice, and groups that tell who is at fault."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.facts.bench_schedule import (
    all_rounds,
    faulty_hosts,
    first_groups,
    first_rounds,
    second_groups,
    suspect_rounds,
    turns_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

counts = st.integers(0, 70)


def names(count: int) -> list[str]:
    return [f"gpu{number:02}" for number in range(count)]


def every_pair(hosts: Iterable[str]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in itertools.combinations(hosts, 2)}


@settings(deadline=None)
@given(counts)
def test_every_pair_meets_once_and_no_host_is_twice_in_a_round(count: int) -> None:
    rounds = all_rounds(names(count))
    met = [frozenset(pair) for one in rounds for pair in one]
    assert len(met) == len(set(met))
    assert set(met) == every_pair(names(count))
    for one in rounds:
        assert len({host for pair in one for host in pair}) == 2 * len(one)
    assert len(rounds) <= count


@pytest.mark.parametrize("count", [2, 3, 8, 9, 33])
def test_no_host_pauses_more_than_once(count: int) -> None:
    for host in names(count):
        pauses = sum(host not in {one for pair in single for one in pair} for single in all_rounds(names(count)))
        assert pauses == count % 2


def test_few_hosts_have_all_rounds_and_many_about_log2_of_them() -> None:
    assert first_rounds(names(32)) == all_rounds(names(32))
    assert len(first_rounds(names(33))) == 6
    assert len(first_rounds(names(1000))) == 10
    assert set(first_rounds(names(100))) <= set(all_rounds(names(100)))


@settings(deadline=None)
@given(st.integers(33, 70), st.sets(st.integers(0, 32), max_size=4))
def test_the_rows_of_suspects_are_completed_and_nothing_else(count: int, places: set[int]) -> None:
    hosts = names(count)
    suspects = {hosts[place] for place in places}
    first = [pair for one in first_rounds(hosts) for pair in one]
    rounds = suspect_rounds(hosts, suspects, first)
    more = [frozenset(pair) for one in rounds for pair in one]
    wanted = {pair for pair in every_pair(hosts) if pair & suspects} - {frozenset(pair) for pair in first}
    assert len(more) == len(set(more))
    assert set(more) == wanted
    for one in rounds:
        assert len({host for pair in one for host in pair}) == 2 * len(one)


@given(st.integers(4, 40))
def test_neighbours_hold_every_host_once(count: int) -> None:
    groups = first_groups(names(count))
    assert [host for group in groups for host in group] == names(count)
    assert all(2 <= len(group) <= 3 for group in groups)


@given(st.integers(3, 40), st.data())
def test_one_bad_host_is_isolated_wherever_it_is(count: int, data: st.DataObject) -> None:
    hosts = names(count)
    bad = data.draw(st.sampled_from(hosts))
    first = first_groups(hosts)
    failed = [group for group in first if bad in group]
    second = second_groups(first, failed)
    again = [group for group in second if bad in group]
    assert faulty_hosts([*first, *second], [*failed, *again]) == [bad]
    for group in second:
        assert bad not in group[1:]


def test_two_bad_hosts_in_two_groups_are_both_found() -> None:
    first = first_groups(names(8))
    failed = [first[0], first[2]]
    second = second_groups(first, failed)
    again = [group for group in second if {"gpu00", "gpu05"} & set(group)]
    assert faulty_hosts([*first, *second], [*failed, *again]) == ["gpu00", "gpu05"]


def test_nothing_can_be_told_where_all_or_no_group_is_bad() -> None:
    first = first_groups(names(4))
    assert second_groups(first, first) == []
    assert faulty_hosts(first, first) == []
    assert second_groups(first, []) == []
    assert faulty_hosts(first, []) == []
    assert first_groups(names(2)) == []


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("efgh")), max_size=12))
def test_groups_of_one_turn_share_no_host(groups: list[tuple[str, ...]]) -> None:
    turns = turns_of(groups)
    assert sorted(group for turn in turns for group in turn) == sorted(groups)
    for turn in turns:
        assert len({host for group in turn for host in group}) == sum(len(group) for group in turn)
