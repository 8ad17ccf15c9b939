"""How long a node keeps the rendezvous store when its own agent has ended. Not covered: ending processes (pairs)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.shared.node_records import Ready
from clusterddp.remote.supervisor import clearing
from clusterddp.remote.supervisor.clearing import Clearing
from clusterddp.remote.supervisor.shutdown import Shutdown
from tests.unit.plan_made import PLAN

if TYPE_CHECKING:
    from clusterddp.remote.control.messages import Order

PLACES = (0, 1, 2)


class Node:
    """The first of three nodes: its agent has ended, the others have said nothing yet.

    Attributes:
        over: Places whose part is over.
        passed_on: Orders that were passed on to the other nodes.
    """

    def __init__(self, *, agent_exit: int, elastic: bool = True) -> None:
        self.plan = PLAN._replace(elastic=elastic, places=PLACES, min_nodes=2, relaunch=2)
        self.spool: Any = None
        self.shutdown = Shutdown()
        self.work: Any = None
        self.inbox: Any = SimpleNamespace(ready=Ready())
        self.over: set[int] = {0}
        self.passed_on: list[Order] = []
        self.membership: Any = SimpleNamespace(
            over=lambda _attempt: self.over, lost=lambda _now, _limit: [], pass_on=self.passed_on.append
        )
        self.children: Any = SimpleNamespace(
            agent_exit=agent_exit,
            store=17,
            store_died=False,
            store_said=lambda: "serving on port 1",
            end=lambda _grace: None,
            end_fork_server=lambda **_: None,
        )
        self.elastic = elastic

    def goes_on(self) -> bool:
        return self.elastic

    def store_dies(self) -> None:
        self.children.store, self.children.store_died = None, True


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is connected to the store, which is noticed at once."""
    monkeypatch.setattr(clearing, "clients", lambda _port: 0)
    monkeypatch.setattr(clearing, "STORE_QUIET", 0.0)


def test_the_store_outlives_a_failed_agent_while_the_others_of_an_elastic_job_are_not_connected_yet() -> None:
    node = Node(agent_exit=137)
    over = Clearing(node)
    assert [over.store_needed(None) for _ in range(3)] == [True] * 3
    node.over = set(PLACES)
    assert not over.store_needed(None)
    assert not node.passed_on


def test_a_store_that_dies_behind_its_agent_ends_the_attempt_of_those_who_would_go_on() -> None:
    node = Node(agent_exit=137)
    over = Clearing(node)
    node.store_dies()
    assert not over.store_needed(None)
    (order,) = node.passed_on
    assert (order.reason, order.attempt, order.ours) == ("the rendezvous store died: serving on port 1", 1, True)
    assert not over.store_needed(None)
    assert len(node.passed_on) == 1


@pytest.mark.parametrize(("code", "elastic"), [(0, True), (137, False)])
def test_a_store_that_nobody_uses_is_not_kept_where_the_job_is_over(code: int, *, elastic: bool) -> None:
    node = Node(agent_exit=code, elastic=elastic)
    over = Clearing(node)
    assert not over.store_needed(None)
    node.store_dies()
    assert not over.store_needed(None)
    assert not node.passed_on


def test_a_store_that_dies_when_all_others_are_over_is_not_missed() -> None:
    node = Node(agent_exit=137)
    over = Clearing(node)
    node.over = set(PLACES)
    node.store_dies()
    assert not over.store_needed(None)
    assert not node.passed_on
