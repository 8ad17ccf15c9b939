"""What is told of a round: after which failure it began, on which hosts, and who left or joined."""

from __future__ import annotations

from typing import Any

import pytest

from clusterddp.runs.restarts import explain_round, rounds_of
from clusterddp.runs.view.run_view import RunView, run_views
from tests.unit.runs_told import Told


def host(number: int, *, hosts: int = 2, max_restarts: int = 3, **more: Any) -> Told:
    names = [f"gpu{member:02}" for member in range(hosts)]
    one = Told(number, hosts=names, max_restarts=max_restarts, **more)
    one.fields["events"].clear()
    return one


def begins(*hosts: Told, number: int, seconds: float, start: int | None = None, nodes: int | None = None) -> None:
    """A round with one worker on each of these hosts."""
    size = nodes or len(hosts)
    for rank, one in enumerate(hosts):
        fields = {"start": number if start is None else start, "local_rank": 0, "rank": rank, "round": number}
        one.event("worker_started", seconds, **fields, world_size=size, group_world_size=size)
        one.first_rank = rank


def view(*hosts: Told, silent: tuple[str, ...] = ()) -> RunView:
    (found,) = run_views([one.node for one in hosts], silent)
    return found


def test_a_restart_names_the_failure_it_follows_and_how_many_there_may_be() -> None:
    hosts = host(0), host(1)
    begins(*hosts, number=0, seconds=0)
    hosts[1].died(5, raised="ValueError: loss is NaN")
    hosts[0].died(6, signal=15, signals_received=[[15, 0]])
    begins(*hosts, number=1, seconds=8)
    assert explain_round(view(*hosts).nodes, 1) == [
        "restart 1 of 3: rank 1 failed with ValueError: loss is NaN (train.py:81)"
    ]
    hosts[0].died(9, signal=9, start=1)
    begins(*hosts, number=2, seconds=12)
    assert explain_round(view(*hosts).nodes, 2) == [
        "restart 2 of 3: rank 0 was killed by SIGKILL, often the out-of-memory killer"
    ]


def test_a_failure_is_told_though_the_event_of_its_workers_start_is_lost() -> None:
    hosts = host(0), host(1)
    begins(*hosts, number=0, seconds=0)
    hosts[1].died(5, raised="ValueError: loss is NaN")
    begins(*hosts, number=1, seconds=8)
    events = hosts[1].fields["events"]
    events.remove(next(one for one in events if one["event"] == "worker_started" and one["start"] == 0))
    assert explain_round(view(*hosts).nodes, 1)[0] == (
        "restart 1 of 3: rank 1 failed with ValueError: loss is NaN (train.py:81)"
    )


def test_a_host_that_left_is_named_also_when_it_answers_no_more() -> None:
    hosts = host(0, hosts=3), host(1, hosts=3), host(2, hosts=3)
    begins(*hosts, number=0, seconds=0)
    begins(*hosts[:2], number=1, seconds=9)
    told = ["round 1: 2 ranks on gpu00, gpu01 (gpu02 left)"]
    assert explain_round(view(*hosts).nodes, 1) == told
    assert explain_round(view(*hosts[:2], silent=("gpu02",)).nodes, 1) == told


def test_a_host_that_joined_is_named() -> None:
    hosts = host(0, hosts=1), host(1, hosts=1)
    begins(hosts[0], number=0, seconds=0)
    begins(*hosts, number=1, seconds=9)
    assert explain_round(view(*hosts).nodes, 1) == ["round 1: 2 ranks on gpu00, gpu01 (gpu01 joined)"]
    assert explain_round(view(hosts[0]).nodes, 1) == ["round 1: 2 ranks on gpu00 and 1 more"]


def test_a_failure_and_a_change_of_hosts_are_both_told() -> None:
    hosts = host(0), host(1)
    begins(*hosts, number=0, seconds=0)
    hosts[0].died(5, raised="ConnectionResetError: reset by peer")
    begins(hosts[0], number=1, seconds=9)
    assert explain_round(view(*hosts).nodes, 1) == [
        "restart 1 of 3: rank 0 failed with ConnectionResetError: reset by peer (train.py:81)",
        "round 1: 1 rank on gpu00 (gpu01 left)",
    ]


def test_a_round_for_no_known_reason_is_told_by_its_hosts() -> None:
    hosts = host(0), host(1)
    begins(*hosts, number=0, seconds=0)
    begins(*hosts, number=1, seconds=9)
    assert explain_round(view(*hosts).nodes, 1) == ["round 1: 2 ranks on gpu00, gpu01"]


def test_where_torchrun_numbers_no_rounds_a_hosts_own_count_stands_for_it() -> None:
    hosts = host(0), host(1)
    for number in range(2):
        begins(*hosts, number=number, seconds=9 * number)
    for one in hosts:
        for event in one.fields["events"]:
            event.update(round=None, world_size=None, group_world_size=None)
    found = rounds_of([one.node for one in hosts])
    assert {number: (one.ranks, one.nodes, one.complete) for number, one in found.items()} == {
        0: (2, 2, True), 1: (2, 2, True)
    }  # fmt: skip


def test_a_round_is_complete_when_all_its_workers_have_started() -> None:
    hosts = host(0), host(1)
    begins(hosts[0], number=0, seconds=0, nodes=2)
    assert not rounds_of([one.node for one in hosts])[0].complete
    begins(*hosts, number=0, seconds=0)
    assert rounds_of([one.node for one in hosts])[0].complete


@pytest.mark.parametrize(
    ("attempt", "rounds", "said"),
    [
        (1, 1, "succeeded"),
        (1, 2, "succeeded after 1 restart"),
        (1, 3, "succeeded after 2 restarts"),
        (2, 1, "succeeded after 1 relaunch"),
        (3, 2, "succeeded after 2 relaunches and 1 restart"),
    ],
)
def test_a_good_end_says_how_often_the_workers_were_started_again(attempt: int, rounds: int, said: str) -> None:
    hosts = host(0), host(1)
    for one in hosts:
        one.fields["attempt"] = attempt
    for number in range(rounds):
        begins(*hosts, number=number, seconds=9 * number)
    for one in hosts:
        one.ended("succeeded", 60, agent=0)
    verdict = view(*hosts).verdict()
    assert verdict
    assert (verdict.line, verdict.exit_code) == (said, 0)
