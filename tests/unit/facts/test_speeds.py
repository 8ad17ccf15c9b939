"""What measured speeds mean: the slow host alone, the slow way alone, nothing where speeds merely scatter."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import HelperError
from clusterddp.facts.speeds import Speed, find_slow_hosts, slow_pairs

if TYPE_CHECKING:
    from collections.abc import Callable

# Mbit/s of every way between three and four hosts of the lab, each run on two cores with a load of 5 to 20.
SCATTERED = [
    [9325, 9435, 10192, 11974, 12245, 12944],
    [8743, 9132, 9575, 10727, 10890, 13230],
    [8005, 8888, 9630, 10544, 10821, 14174],
    [7657, 8493, 10641, 11650, 11829, 11851],
    [2851, 2864, 2867, 2870, 2903, 3350, 3994, 4705, 4742, 5252, 5564, 5954],
    [2670, 2865, 3146, 3182, 3245, 3343, 3501, 3714, 3970, 3988, 4592, 4619],
    [4645, 4679, 4899, 4943, 5318, 5541, 5757, 5900, 6258, 6389, 6791, 8245],
]


def speeds(count: int, mbit: Callable[[int, int], float]) -> list[Speed]:
    ways = itertools.permutations(range(count), 2)
    return [
        Speed(source=f"gpu{one:02}", target=f"gpu{other:02}", size=int(mbit(one, other) * 125e3), ns=10**9)
        for one, other in ways
    ]


@pytest.mark.parametrize("cells", SCATTERED)
def test_scatter_on_a_busy_machine_is_nothing(cells: list[int]) -> None:
    count = 3 if len(cells) == 6 else 4
    for seed in range(20):
        left = random.Random(seed).sample(cells, len(cells))
        found = find_slow_hosts(speeds(count, lambda *_, left=left: left.pop()))
        assert (found.hosts, found.ways) == ((), ())


@pytest.mark.parametrize("count", [3, 4, 5, 8, 40])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_slow_host_is_named_alone(count: int, bad: int) -> None:
    found = find_slow_hosts(speeds(count, lambda one, other: 96 if bad in (one, other) else 9000 + 100 * one))
    assert [(host.name, host.sends, host.receives) for host in found.hosts] == [(f"gpu{bad:02}", True, True)]
    assert found.ways == ()
    assert round(found.hosts[0].mbit) == 96


@pytest.mark.parametrize("back", [1.0, 0.65, 0.45])
def test_a_slow_host_is_named_although_the_only_healthy_pair_scatters(back: float) -> None:
    found = find_slow_hosts(speeds(3, lambda *pair: 96 if 1 in pair else 9000 * (back if pair == (2, 0) else 1)))
    assert [host.name for host in found.hosts] == ["gpu01"]
    assert found.ways == ()


def test_a_host_that_is_slow_one_way_only_says_which() -> None:
    found = find_slow_hosts(speeds(5, lambda one, _: 900 if one == 3 else 9000))
    assert [(host.name, host.sends, host.receives) for host in found.hosts] == [("gpu03", True, False)]
    found = find_slow_hosts(speeds(5, lambda _, other: 900 if other == 3 else 9000))
    assert [(host.name, host.sends, host.receives) for host in found.hosts] == [("gpu03", False, True)]


def test_two_slow_hosts_are_both_named() -> None:
    found = find_slow_hosts(speeds(6, lambda one, other: 96 if {1, 4} & {one, other} else 9000))
    assert sorted(host.name for host in found.hosts) == ["gpu01", "gpu04"]
    assert found.ways == ()


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_slow_way_is_no_slow_host(count: int) -> None:
    found = find_slow_hosts(speeds(count, lambda one, other: 500 if (one, other) == (0, 2) else 9000))
    assert found.hosts == ()
    assert [(way.source, way.target) for way in found.ways] == [("gpu00", "gpu02")]


def test_a_little_is_told_where_all_else_is_even() -> None:
    found = find_slow_hosts(speeds(8, lambda one, other: 90_000 if 3 in (one, other) else 99_000 + 100 * one))
    assert [host.name for host in found.hosts] == ["gpu03"]
    assert slow_pairs(speeds(8, lambda one, _: 97_000 if one == 3 else 99_000)) == []


def test_two_hosts_are_compared_with_each_other_only() -> None:
    assert find_slow_hosts(speeds(2, lambda *_: 5)).ways == ()
    (way,) = find_slow_hosts(speeds(2, lambda one, _: 9000 if one else 900)).ways
    assert (way.source, way.target) == ("gpu00", "gpu01")


def test_what_was_not_measured_is_not_slow() -> None:
    dead = [Speed(source="gpu00", target="gpu01", error="timeout")]
    assert slow_pairs(dead) == []
    assert find_slow_hosts([]).usual == 0
    assert find_slow_hosts([*dead, *speeds(3, lambda *_: 9000)]).ways == ()


def test_a_hosts_answer_is_read_and_a_damaged_one_refused() -> None:
    answer = {"counted": {"bytes": 10**9, "ns": 10**9}, "error": None}
    assert Speed.from_json("gpu00", "gpu01", answer).mbit == 8000
    silent = Speed.from_json("gpu00", "gpu01", {"counted": None, "error": "timeout"})
    assert (silent.mbit, silent.to_json()["mbit"], silent.to_json()["error"]) == (0, None, "timeout")
    with pytest.raises(HelperError, match="damaged"):
        Speed.from_json("gpu00", "gpu01", {"counted": {"bytes": -1, "ns": 5}, "error": None})
