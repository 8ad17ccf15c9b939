"""What follows an attempt: the decision, and a node's next plan. Pure; carried out in tests/integration."""

from __future__ import annotations

import pytest

from clusterddp.remote.control.messages import NodeState, NodeStatus
from clusterddp.remote.shared.run.plan import NodePlan, next_plan
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.supervisor.next_attempt import NextAttempt, decide
from tests.unit.launch.test_make_plan import node
from tests.unit.plan_made import changed, launch_plan


def plan(count: int, *, elastic: tuple[int, int] | None = None, backend: str = "clusterddp") -> NodePlan:
    nodes = [node(member) for member in range(count)]
    record = RunRecord(hosts=tuple(one.host for one in nodes))
    return launch_plan(nodes, nnodes=elastic, relaunch=2, rdzv_backend=backend, record=record).node_plan(0)


def ended(code: int, *, curable: bool = True) -> NodeStatus:
    return NodeStatus(NodeState.ENDED, 1, code, curable, "a cause")


def test_an_elastic_attempt_that_ended_well_on_enough_nodes_is_the_last() -> None:
    words = {0: ended(0), 1: ended(1), 2: ended(0)}
    assert decide(plan(3, elastic=(2, 3)), words, {0, 1, 2}, set()) == NextAttempt(())
    assert decide(plan(3, elastic=(2, 3)), {0: ended(0), 2: ended(0)}, {0, 2}, {1}) == NextAttempt(())
    again = decide(plan(3), words, {0, 1, 2}, set())
    assert again
    assert again.members == (0, 1, 2)


def test_a_node_that_does_not_begin_the_attempt_is_not_waited_for() -> None:
    old = NodeStatus(NodeState.RUNNING, 1)
    words = {member: ended(1)._replace(attempt=2) for member in (0, 1)}
    second = changed(plan(3), attempt=2, min_nodes=2)
    assert decide(second, {**words, 2: old}, {0, 1, 2}, set()) is None
    following = decide(second, {**words, 2: old}, {0, 1, 2}, {2})
    assert following
    assert following.members == (0, 1)


@pytest.mark.parametrize(("backend", "order"), [("static", [2, 0, 3]), ("clusterddp", [0, 2, 3])])
def test_under_static_the_node_that_has_the_store_holds_rank_0(backend: str, order: list[int]) -> None:
    old = plan(4, backend=backend)._replace(member=2)
    new = next_plan(old, 2, [0, 2, 3], 2)
    assert list(new.members) == order
    assert new.node_rank == order.index(2)
    assert new.record.hosts == tuple(f"gpu{member:02}" for member in order)
    assert "10.0.0.3:{port}" in new.argv


STANDBY = NodeStatus(NodeState.STANDBY, 1)


@pytest.mark.parametrize(
    ("lead", "members"),
    [(0, (0, 1, 2)), (3, (0, 1, 3)), (4, (0, 1, 4))],
    ids=["a node leads", "the first spare leads", "another spare leads"],
)
def test_a_spare_that_leads_takes_part_since_the_store_is_on_its_host(lead: int, members: tuple[int, ...]) -> None:
    words = {**{member: ended(137) for member in range(3)}, 3: STANDBY, 4: STANDBY}
    following = decide(plan(3)._replace(member=lead), words, set(range(5)), set())
    assert following
    assert following.members == members


def test_a_spare_that_leads_takes_the_place_of_a_lost_node() -> None:
    words = {**{member: ended(137) for member in range(2)}, 3: STANDBY, 4: STANDBY}
    following = decide(plan(3)._replace(member=4), words, {0, 1, 3, 4}, {2})
    assert following
    assert following.members == (0, 1, 4)


def test_a_lost_spare_takes_no_place_of_a_node_that_has_not_ended() -> None:
    words = {member: ended(1) for member in (0, 1)}
    assert decide(plan(3), {**words, 2: NodeStatus(NodeState.RUNNING, 1)}, {0, 1, 2}, {3}) is None
