"""A leader that gave up for want of a majority, and has one again: what it decides for nodes that did not give up.

Found by a simulated run (seed 5048): they waited for its decision, and it for their ends, until somebody stopped it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.remote.control.messages import AttemptDecision, NodeState, NodeStatus
from clusterddp.remote.shared.run.plan import Peer, with_peer
from clusterddp.remote.supervisor.relaunch import NO_MAJORITY, Relaunching
from tests.unit.remote.supervisor.test_next_attempt import ended, plan


def decisions(statuses: dict[int, NodeStatus], **changed: Any) -> list[AttemptDecision]:
    """What the leader, node 0 of three, decides; ``changed``: what of run control is otherwise than there."""
    made: list[AttemptDecision] = []
    control: dict[str, Any] = {"connected": {1, 2}, "in_contact": True}
    membership: dict[str, Any] = {
        "statuses": statuses, "decision": None, "left": set(), "concluded": set(), "decide": made.append,
        "lost": lambda _now, _limit: [], "behind": lambda _now, _limit: [], "may_decide": True,
    }  # fmt: skip
    for values in (control, membership):
        values.update({name: value for name, value in changed.items() if name in values})
    node: Any = SimpleNamespace(member=0, plan=plan(3), shutdown=SimpleNamespace(order=changed.get("order")))
    conditions: Any = SimpleNamespace(limits=SimpleNamespace(lost=7.5, behind=30.0))
    given: list[Any] = [SimpleNamespace(**control), SimpleNamespace(**membership), conditions, None]
    Relaunching(*given).refuse_as_leader(node)
    return made


ALL_FAILED = {member: ended(1) for member in range(3)}
ALL_WELL = {member: ended(0) for member in range(3)}


def test_no_attempt_follows_where_one_could() -> None:
    assert decisions(ALL_FAILED) == [AttemptDecision(2, reason=NO_MAJORITY)]


def test_an_attempt_that_ended_well_is_the_last_and_has_no_reason_against_it() -> None:
    assert decisions(ALL_WELL) == [AttemptDecision(2, reason="")]


@pytest.mark.parametrize(
    "changed",
    [
        {"may_decide": False},
        {"decision": AttemptDecision(2, (0, 1, 2), 0, 29400)},
        {"order": SimpleNamespace(attempt=None)},
    ],
    ids=["no leader of a majority", "decided already", "the run is stopped"],
)
def test_it_decides_nothing_that_is_not_its_to_decide(changed: dict[str, Any]) -> None:
    assert decisions(ALL_FAILED, **changed) == []


def test_it_waits_for_a_node_that_has_not_ended() -> None:
    assert decisions({**ALL_FAILED, 2: NodeStatus(NodeState.RUNNING, 1)}) == []


def test_a_decision_that_names_a_host_of_which_no_word_has_come_yet_waits_for_it() -> None:
    """It is sent at once on a new connection, the leader's table of the nodes a moment later."""
    stood_by: list[AttemptDecision] = []
    node: Any = SimpleNamespace(member=0, plan=plan(3), stand_by=stood_by.append)
    given: list[Any] = [None, None, None, None]
    relaunching, decision = Relaunching(*given), AttemptDecision(2, (1, 2, 3), 1, 29400)
    assert relaunching._carry_out(node, decision) is None
    assert not stood_by
    node.plan = with_peer(node.plan, Peer("gpu03", "10.0.0.3", 1))
    assert relaunching._carry_out(node, decision) is None
    assert stood_by == [decision]
