"""Whom each host dials: of many hosts few others, and yet whatever one host does to its packets is found."""

from __future__ import annotations

import ipaddress
from collections import Counter
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.checks.connections import culprits
from clusterddp.facts.dial_schedule import ALL_PAIRS_HOSTS, PARTNERS, connected, dial_schedule, some_others
from clusterddp.facts.network import DialFailure
from tests.unit.facts_made import interface

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.facts.host import Interface

Where = dict[str, "Interface"]
Direction = tuple[str, str]


def network(sizes: Sequence[int], prefix: int = 24) -> Where:
    """Hosts of subnets of these sizes, one of each in turn: no two of one subnet are neighbours if it can be helped."""
    addresses = [
        [str(ipaddress.ip_address("10.0.0.1") + (index << (32 - prefix)) + host) for host in range(size)]
        for index, size in enumerate(sizes)
    ]
    mixed = [own[turn] for turn in range(max(sizes)) for own in addresses if turn < len(own)]
    return {f"gpu{number:04}": interface(address, prefix=prefix) for number, address in enumerate(mixed)}


def directions(where: Where) -> set[Direction]:
    return {(one, other) for one, others in dial_schedule(where).items() for other in others}


def blamed(failed: Iterable[Direction], dialled: set[Direction]) -> tuple[str, ...]:
    made = [
        DialFailure(source=one, target=other, address="10.0.0.1", port=1, ranged=False, word="timeout")
        for one, other in sorted(failed)
    ]
    return culprits(made, dialled)


@st.composite
def networks(draw: st.DrawFn) -> Where:
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=30).filter(lambda sizes: sum(sizes) < 400))
    return network([*sizes, max(1, ALL_PAIRS_HOSTS + 1 - sum(sizes))])


def test_up_to_the_limit_all_pairs_are_dialled_and_beyond_it_if_that_is_wanted() -> None:
    few, many = network([ALL_PAIRS_HOSTS]), network([ALL_PAIRS_HOSTS + 1])
    assert directions(few) == set(permutations(few, 2))
    assert directions(many) < set(permutations(many, 2))
    wanted = dial_schedule(many, all_pairs=True)
    assert {(one, other) for one, others in wanted.items() for other in others} == set(permutations(many, 2))
    assert dial_schedule({"only": interface("10.0.0.1")}) == {"only": ()}
    assert dial_schedule({}) == {}


@settings(max_examples=30, deadline=None)
@given(networks())
def test_each_host_dials_the_first_and_eight_others_and_each_pair_is_dialled_both_ways(where: Where) -> None:
    dialled = directions(where)
    assert {(other, one) for one, other in dialled} == dialled
    first, *others = where
    for name in others:
        own = {other for one, other in dialled if one == name}
        assert first in own
        assert len(own - {first, name}) == len(own) - 1 >= PARTNERS


@settings(max_examples=30, deadline=None)
@given(networks(), st.data())
def test_a_host_that_drops_all_it_sends_or_all_it_gets_is_the_one_named(where: Where, data: st.DataObject) -> None:
    dialled = directions(where)
    bad = data.draw(st.sampled_from(list(where)))
    sent, got = ({pair for pair in dialled if pair[end] == bad} for end in (0, 1))
    for failed in (sent, got, sent | got):
        assert blamed(failed, dialled) == (bad,)


@settings(max_examples=30, deadline=None)
@given(networks(), st.data())
def test_several_bad_hosts_are_named_and_nobody_else(where: Where, data: st.DataObject) -> None:
    dialled = directions(where)
    # fewer than a host has partners, so that no healthy host has bad ones alone
    bad = data.draw(st.sets(st.sampled_from(list(where)), min_size=2, max_size=PARTNERS - 1))
    ends = {name: data.draw(st.sampled_from([(0,), (1,), (0, 1)])) for name in sorted(bad)}
    failed = {pair for pair in dialled for end, name in enumerate(pair) if end in ends.get(name, ())}
    assert set(blamed(failed, dialled)) == bad


@settings(max_examples=30, deadline=None)
@given(networks())
def test_every_two_subnets_are_tried_both_ways_and_so_is_every_subnet_in_itself(where: Where) -> None:
    place = {name: str(one.network) for name, one in where.items()}
    tried = {(place[one], place[other]) for one, other in directions(where)}
    sizes = Counter(place.values())
    assert tried == set(permutations(sizes, 2)) | {(one, one) for one, size in sizes.items() if size > 1}


def test_addresses_of_links_are_no_subnets_of_their_own() -> None:
    routed = network([1000], prefix=16)
    links = {name: interface(one.address, prefix=32) for name, one in routed.items()}
    assert sum(map(len, dial_schedule(links).values())) < 1.1 * sum(map(len, dial_schedule(routed).values()))
    six = {name: interface(f"fd00::{number:x}", prefix=128) for number, name in enumerate(routed, 1)}
    assert sum(map(len, dial_schedule(six).values())) < 1.1 * sum(map(len, dial_schedule(routed).values()))


@pytest.mark.parametrize("order", ["inventory", "addresses"])
def test_what_nccl_connects_is_dialled_in_either_order_of_ranks(order: str) -> None:
    where = network([34], prefix=16)
    ranks = list(where) if order == "inventory" else sorted(where, key=lambda name: where[name].address)
    dialled = directions(where)
    tree = {0: 32, 32: 16, 16: 24, 24: 28, 28: 30, 30: 31, 4: 6, 12: 8, 8: 16, 33: 32, 1: 2, 13: 14}
    for one, other in tree.items():
        assert (ranks[one], ranks[other]) in dialled
        assert (ranks[33 - one], ranks[33 - other]) in dialled, "the second tree is the first one mirrored"
    assert all((ranks[rank], ranks[(rank + 1) % 34]) in dialled for rank in range(34))


@pytest.mark.parametrize(("count", "most"), [(400, 9_000), (1000, 24_000)])
def test_the_dials_grow_with_the_hosts_not_with_their_square(count: int, most: int) -> None:
    assert 2 * len(directions(network([25] * (count // 25)))) < most


@settings(max_examples=50, deadline=None)
@given(st.integers(ALL_PAIRS_HOSTS + 1, 200), st.data())
def test_neighbours_that_share_a_folder_are_found_by_chains_of_sights(count: int, data: st.DataObject) -> None:
    names = tuple(f"gpu{number:03}" for number in range(count))
    others = some_others(names)
    start = data.draw(st.integers(0, count - 1))
    rack = set(names[start : start + data.draw(st.integers(2, count))])
    seen = {name: [other for other in others[name] if {name, other} <= rack] for name in names}
    found = connected(seen)
    for name in names:
        assert set(found[name]) == (rack - {name} if name in rack else set())


def test_one_that_sees_another_which_does_not_see_it_shares_its_folder_all_the_same() -> None:
    assert connected({"a": ["b", "gone"], "b": [], "c": []}) == {"a": ("b",), "b": ("a",), "c": ()}
