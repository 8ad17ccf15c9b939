"""When a node ends its part because the rendezvous store is gone, or its time is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from clusterddp.remote.control.membership import TCP_ONLY_MARGIN
from clusterddp.remote.control.messages import NodeState, NodeStatus, TakingPart
from clusterddp.remote.rendezvous.participants import AGENT_DELAY, Participants
from clusterddp.remote.shared.run.spool_records import Ready
from clusterddp.remote.shared.supervisor.start_records import START_TIMEOUT
from clusterddp.remote.shared.verdict.failures import LEASE, TIME_LIMIT
from clusterddp.remote.spool.attention import attention
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.supervisor.fence_pipe import Lease
from clusterddp.remote.supervisor.stop_conditions import FENCE_MARGIN, LIMITS, LIMITS_RELAUNCH, StopConditions
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
        names=HOSTS,
        own_name=HOSTS[1],
        ended_statuses=lambda attempt: {0: word} if word and attempt == 1 else {},
    )
    unused: Any = None
    made = StopConditions(unused, membership, unused, plan)
    children: Any = SimpleNamespace(
        store_died=died, store_terminated=False, store_output=lambda: "killed", spool=Spool(folder)
    )
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


@pytest.mark.parametrize(("manager", "reason"), [("Slurm", "by Slurm (SIGTERM)"), ("", "the rendezvous store died: ")])
def test_a_store_that_a_managers_sigterm_has_reached_first_is_no_cause(manager: str, reason: str) -> None:
    """A job that Slurm requeued, whose store's end was noticed first, ended for good: its store had died."""
    made = conditions(None, died=True)
    made.switch_plan(made.plan._replace(manager=manager), made.children)
    made.children.store_terminated = True
    order = made.ending_attempt["store"]()
    assert order
    assert order.reason.startswith(reason)
    assert made.terminated is bool(manager)


@pytest.mark.parametrize(
    ("code", "manager", "is_ordered", "is_signal"),
    [
        (143, "Slurm", False, True),  # before torchrun handled it
        (1, "Slurm", False, False),
        (143, "Slurm", True, False),  # we sent it
        (143, "", False, False),
    ],
)
def test_an_agent_that_a_managers_sigterm_has_ended_at_once_is_no_cause(
    code: int, manager: str, *, is_ordered: bool, is_signal: bool
) -> None:
    """A job that Slurm requeued in its first seconds ended for good: torchrun was killed by SIGTERM."""
    made = conditions(None)
    made.fence = cast("Any", SimpleNamespace(acted=None, has_ended=False))
    made.switch_plan(made.plan._replace(manager=manager), made.children)
    made.children.agent_exit = code
    order = made.order_after_agent(is_ordered=is_ordered)
    assert (order.reason if order else "") == ("by Slurm (SIGTERM)" if is_signal else "")
    assert made.terminated is is_signal


def test_what_cannot_go_on_without_a_node_ends_when_its_fence_has_acted_and_begins_anew_when_it_is_lost() -> None:
    asked: list[float] = []

    def lost(_: float, limit: float) -> list[int]:
        asked.append(limit)
        return [0]

    one = conditions(None)
    one.control = SimpleNamespace(leading=True, settled=True)  # type: ignore[assignment]
    vars(one.membership).update(member=1, ended=set(), behind=lambda *_: [], lost=lost)
    order = one.ending_attempt["lost nodes"]()
    assert order
    assert (order.reason, order.attempt) == ("gpu00 was lost", 1)
    (limit,) = asked
    agent_acts = LIMITS_RELAUNCH.fence + FENCE_MARGIN + AGENT_DELAY
    assert agent_acts <= limit < agent_acts + LIMITS_RELAUNCH.grace < LIMITS_RELAUNCH.lost
    assert LIMITS.fenced == LIMITS.lost  # without relaunches the fence acts later


@pytest.mark.parametrize(
    ("failed", "lost", "reason"),
    [
        (None, [1], ""),
        (2, [], ""),
        (2, [2], ""),  # the same node
        (2, [1], "gpu01 was lost"),
        (None, [1, 2], "gpu01, gpu02 were lost"),
    ],
)
def test_an_elastic_job_ends_when_fewer_than_min_are_left_by_nodes_that_are_lost_or_have_failed(
    failed: int | None, lost: list[int], reason: str
) -> None:
    one = conditions(None, member=0)
    one.control = SimpleNamespace(leading=False, settled=True)  # type: ignore[assignment]
    ended = {} if failed is None else {failed: NodeStatus(NodeState.ENDED, 1, 1)}
    vars(one.membership).update(ended=set(), ended_statuses=lambda _: ended, lost=lambda _now, _limit: lost)
    order = one.ending_attempt["lost nodes"]()
    assert (order.reason if order else "") == reason
    assert one.continues_without(lost) == (not reason)


@pytest.mark.parametrize(
    ("may_decide", "changes", "fenced"),
    [
        (True, {}, {2}),
        (False, {}, set()),
        (True, {"relaunch": 0}, set()),
        (True, {"elastic": False}, set()),
        (True, {"members": (0, 1)}, set()),
    ],
    ids=["leader", "not the leader of a majority", "no fence", "fixed size", "of no attempt"],
)
def test_the_leaders_agent_learns_which_nodes_have_been_told_to_end_by_their_fence(
    *, may_decide: bool, changes: dict[str, Any], fenced: set[int]
) -> None:
    one = conditions(None, **changes)
    part = TakingPart(1, 3, (0, 1, 2), ())
    lost = {LIMITS_RELAUNCH.fenced: [2], LIMITS_RELAUNCH.lost: []}
    vars(one.membership).update(participants=part, lost=lambda _, limit: lost[limit], may_decide=may_decide)
    said = one.participants(Lease(10.0, 11.0, 0))
    assert said == Participants(3, frozenset({0, 1, 2}), frozenset(), frozenset(fenced), 10.0, 11.0)


@pytest.mark.parametrize(
    ("slow", "control_slow", "connected", "is_faster"),
    [(True, False, {0}, True), (True, True, {0}, False), (True, False, set(), False), (False, False, {0}, False)],
    ids=["datagrams come by now", "none comes", "nobody is there", "it was never slow"],
)
def test_a_node_whose_datagrams_get_through_after_all_has_the_shorter_lease(
    *, slow: bool, control_slow: bool, connected: set[int], is_faster: bool
) -> None:
    one = conditions(None)
    one.control = SimpleNamespace(slow=control_slow, connected=connected)  # type: ignore[assignment]
    one.slow = slow
    before = one._fence_limit()
    assert one.heed_datagrams() == is_faster
    assert one._fence_limit() == before - (TCP_ONLY_MARGIN if is_faster else 0)
    assert not one.heed_datagrams()


def test_the_time_limit_waits_until_nobody_is_attached_to_a_rank(tmp_path: Path) -> None:
    (tmp_path / "debug").mkdir()
    over = conditions(None, folder=str(tmp_path), time_limit=1e-9).ending_run["time limit"]
    with attention(Spool(str(tmp_path))), attention(Spool(str(tmp_path))):
        assert over() is None
    order = over()
    assert order
    assert order.reason == TIME_LIMIT


def test_a_spare_to_which_nobody_can_be_attached_leaves_the_time_limit_to_those_at_work(tmp_path: Path) -> None:
    spare = conditions(None, folder=str(tmp_path), time_limit=1e-9, members=(0, 2))
    assert spare.ending_run["time limit"]() is None


@pytest.mark.parametrize("name", ["time limit", "stall", "lease"])
def test_what_the_run_itself_ends_for_leaves_the_workers_its_grace(name: str, tmp_path: Path) -> None:
    made = conditions(None, folder=str(tmp_path), time_limit=1e-9, lease=60.0, grace=120.0)
    made.control = cast("Any", SimpleNamespace(leading=True))
    vars(made.membership).update(operator_age=61.0)
    made.ready, made.stalled = True, "rank 1 hangs"
    order = made.ending_run[name]()
    assert order
    assert order.grace == 120.0


def test_a_node_waits_for_the_slowest_start_and_then_some_for_the_operators_word() -> None:
    made = conditions(None)
    made.started_at -= START_TIMEOUT + 10  # another node took all the time that the operator gives it
    assert made.ending_run["commit"]() is None
    made.started_at -= 30
    order = made.ending_run["commit"]()
    assert order
    assert order.reason == "the operator was lost before every node had started"
    made.ready = True
    assert made.ending_run["commit"]() is None


def test_a_lease_lapses_only_when_all_nodes_were_ready() -> None:
    """A start may take longer than the lease lasts; its operator renews it from the commit on."""
    made = conditions(None)
    made.plan = changed(made.plan, lease=60.0)
    made.control = cast("Any", SimpleNamespace(leading=True))
    made.membership = cast("Any", SimpleNamespace(operator_age=61.0))
    assert made.ending_run["lease"]() is None
    made.ready = True
    order = made.ending_run["lease"]()
    assert order
    assert order.reason == LEASE


def test_a_lease_has_not_lapsed_when_all_nodes_have_just_become_ready() -> None:
    """The commit may be read in the middle of a turn, when this turn's look for renewals is over."""
    began: list[list[tuple[str, int]]] = []
    membership: Any = SimpleNamespace(operator_age=61.0)
    membership.note_operator_contact = lambda renewed: setattr(membership, "operator_age", 100.0 - renewed)
    made = conditions(None, lease=60.0)
    made.control = cast("Any", SimpleNamespace(leading=True, begin=began.append))
    made.membership = membership
    made.begin_run(Ready(peers=(("gpu00", 29480),)), 99.0)
    assert (made.ready, began) == (True, [[("gpu00", 29480)]])
    assert made.ending_run["lease"]() is None
