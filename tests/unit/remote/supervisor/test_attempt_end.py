"""How long a node keeps the rendezvous store when its own agent has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from clusterddp.remote.shared.run.spool_records import Ready
from clusterddp.remote.supervisor import attempt_end
from clusterddp.remote.supervisor.attempt_end import STORE_LOST_TIMEOUT, AttemptCleanup
from clusterddp.remote.supervisor.shutdown import Shutdown
from clusterddp.remote.supervisor.stop_conditions import LIMITS
from tests.unit.plan_made import PLAN, changed

if TYPE_CHECKING:
    from clusterddp.remote.supervisor.node_parts import NodeParts

MEMBERS = (0, 1, 2)


class Node:
    """The first of three nodes: its agent has ended, the others have said nothing yet.

    Attributes:
        over: Places whose part is over.
    """

    def __init__(self, *, agent_exit: int, elastic: bool = True) -> None:
        self.plan = changed(PLAN, elastic=elastic, members=MEMBERS, min_nodes=2, relaunch=2)
        self.spool: Any = None
        self.shutdown = Shutdown()
        self.work: Any = None
        self.inbox: Any = SimpleNamespace(ready=Ready())
        self.over: set[int] = {0}
        self.out_of_reach = 0.0  # for so many seconds the others are
        self.conditions: Any = SimpleNamespace(limits=LIMITS)
        self.membership: Any = SimpleNamespace(
            ended_statuses=lambda _attempt: self.over,
            lost=lambda _now, limit: [1, 2] if self.out_of_reach > limit else [],
            beyond=lambda _attempt: set(),
            excluded=(),
            control=SimpleNamespace(leading=True, settled=True),
        )
        self.children: Any = SimpleNamespace(
            agent_exit=agent_exit,
            store=17,
            end=lambda _grace: None,
            end_fork_server=lambda **_: None,
        )
        self.elastic = elastic

    def job_continues(self) -> bool:
        return self.elastic


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is connected to the store, which is noticed at once."""
    monkeypatch.setattr(attempt_end, "count_clients", lambda _port: 0)
    monkeypatch.setattr(attempt_end, "STORE_IDLE_TIME", 0.0)


def test_the_store_outlives_a_failed_agent_while_the_others_of_an_elastic_job_are_not_connected_yet() -> None:
    node = Node(agent_exit=137)
    over = AttemptCleanup(cast("NodeParts", node))
    assert [over.store_needed(None) for _ in range(3)] == [True] * 3
    node.over = set(MEMBERS)
    assert not over.store_needed(None)


@pytest.mark.parametrize(("code", "elastic"), [(0, True), (137, False)])
def test_a_store_that_nobody_uses_is_not_kept_where_the_job_is_over(code: int, *, elastic: bool) -> None:
    node = Node(agent_exit=code, elastic=elastic)
    over = AttemptCleanup(cast("NodeParts", node))
    assert not over.store_needed(None)


def test_who_follows_keeps_the_store_for_nobody_that_its_leader_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    node, now = Node(agent_exit=137), 1000.0
    over = AttemptCleanup(cast("NodeParts", node))
    node.over, node.membership.excluded = {0, 1}, (0, 2)
    node.membership.control.leading = False

    def needed(seconds: float) -> bool:
        monkeypatch.setattr(attempt_end, "boot_clock", lambda: now + seconds)
        return over.store_needed(None)

    assert needed(0.0)  # its own word, from before it followed, may not be replaced yet
    assert needed(STORE_LOST_TIMEOUT)
    node.membership.control.settled = False
    assert needed(STORE_LOST_TIMEOUT + 1.0)
    node.membership.control.settled = True
    assert needed(STORE_LOST_TIMEOUT + 2.0)
    assert not needed(2 * STORE_LOST_TIMEOUT + 3.0)


def test_a_host_that_may_be_cut_off_itself_keeps_the_store_for_the_others_as_long_as_they_wait_for_it() -> None:
    node = Node(agent_exit=137)
    over = AttemptCleanup(cast("NodeParts", node))
    node.out_of_reach = STORE_LOST_TIMEOUT + 1.0
    node.membership.control.settled = False
    assert over.store_needed(None)
    node.out_of_reach = LIMITS.lost + 1.0
    assert not over.store_needed(None)


def test_a_host_in_contact_with_a_majority_keeps_the_store_for_nobody_out_of_reach() -> None:
    node = Node(agent_exit=137)
    over = AttemptCleanup(cast("NodeParts", node))
    node.out_of_reach = STORE_LOST_TIMEOUT + 1.0
    assert not over.store_needed(None)
