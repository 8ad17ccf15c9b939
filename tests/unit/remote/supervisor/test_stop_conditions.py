"""When a node ends its part because the rendezvous store is gone, or its time is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.control.messages import NodeState, NodeStatus
from clusterddp.remote.shared.verdict.failures import TIME_LIMIT
from clusterddp.remote.spool.attention import attention
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.supervisor.stop_conditions import LIMITS_RELAUNCH, StopConditions
from tests.unit.plan_made import PLAN, changed

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = ["gpu00", "gpu01", "gpu02"]


def conditions(
    word: NodeStatus | None, *, died: bool = False, folder: str = "/nowhere", **changes: Any
) -> StopConditions:
    """Of the second node, to which the first, whose the store is, has said this of itself."""
    own = {"member": 1, "members": (0, 1, 2), "elastic": True, "min_nodes": 2, "relaunch": 2}
    plan = changed(PLAN, **{**own, **changes})
    membership: Any = SimpleNamespace(
        names=HOSTS, ended_statuses=lambda attempt: {0: word} if word and attempt == 1 else {}
    )
    unused: Any = None
    made = StopConditions(unused, membership, unused, plan)
    children: Any = SimpleNamespace(store_died=died, store_output=lambda: "killed", spool=Spool(folder))
    made.switch_plan(plan, children)
    return made


def test_an_elastic_job_ends_its_attempt_when_the_node_that_has_the_store_has_failed() -> None:
    order = conditions(NodeStatus(NodeState.ENDED, 1, 127)).ending_attempt["store"]()
    assert order
    assert order.reason == "gpu00 has ended its part, and with it the rendezvous store"
    assert (order.attempt, order.ours, order.grace) == (1, True, LIMITS_RELAUNCH.grace)


@pytest.mark.parametrize(
    ("word", "changes"),
    [
        (None, {}),
        (NodeStatus(NodeState.ENDING, 1, 137), {}),  # its store waits for us
        (NodeStatus(NodeState.ENDED, 1, 0), {}),  # the job has ended well
        (NodeStatus(NodeState.ENDED, 1, 137), {"elastic": False}),  # the leader ends such a job
        (NodeStatus(NodeState.ENDED, 1, 137), {"member": 0}),
        (NodeStatus(NodeState.ENDED, 1, 137), {"store_member": 2}),
    ],
)
def test_it_goes_on_while_the_store_may_be_there(word: NodeStatus | None, changes: dict[str, Any]) -> None:
    assert conditions(word, **changes).ending_attempt["store"]() is None


def test_a_store_that_dies_on_this_node_ends_the_attempt_at_once() -> None:
    order = conditions(None, died=True).ending_attempt["store"]()
    assert order
    assert (order.reason, order.grace) == ("the rendezvous store died: killed", 0.0)


def test_the_time_limit_waits_until_nobody_is_attached_to_a_rank(tmp_path: Path) -> None:
    (tmp_path / "debug").mkdir()
    over = conditions(None, folder=str(tmp_path), time_limit=1e-9).ending_run["time limit"]
    with attention(Spool(str(tmp_path))), attention(Spool(str(tmp_path))):
        assert over() is None
    order = over()
    assert order
    assert order.reason == TIME_LIMIT
