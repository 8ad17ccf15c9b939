"""Rounds of the rendezvous plugin over torch's real TCPStore: nodes as threads, each with its own connection."""

from __future__ import annotations

import importlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.rendezvous.participants import EVERYONE, Participants
from clusterddp.remote.rendezvous.rounds import NoRound, Rounds, RoundSpec, World
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

need_torch()
pytestmark = pytest.mark.torch

NAMES = ("gpu00", "gpu01", "gpu02", "gpu03")
PATIENCE = 60.0


def distributed() -> Any:
    """torch's package of that name; not imported while tests are collected, which many processes do."""
    return importlib.import_module("torch.distributed")


class Quick(RoundSpec):
    """A job whose nodes are not waited for long."""

    pause = 0.05
    silence_timeout = 3.0


class Node:
    """One node: its rounds, and what run control tells it."""

    def __init__(self, server: Any, job: RoundSpec, port: int = 0) -> None:
        store = distributed().TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=PATIENCE))
        self.job, self.store = job, distributed().PrefixStore("job", store)
        self.told: list[str] = []
        self.participants = EVERYONE
        place = (f"10.0.0.{job.node}", port or 29400 + job.node)
        self.rounds = Rounds(
            self.store, job, lambda: place, tell=self.told.append, participants=lambda: self.participants
        )


class Cluster:
    """A store and the nodes at it."""

    def __init__(self) -> None:
        self.server = distributed().TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.pool = ThreadPoolExecutor(8)
        self.nodes: list[Node] = []

    def node(self, number: int, *, planned: int, least: int, most: int, port: int = 0, **more: Any) -> Node:
        job = Quick(node=number, names=NAMES[:planned], min_nodes=least, max_nodes=most, join_timeout=PATIENCE)
        self.nodes.append(Node(self.server, job._replace(**more), port))
        return self.nodes[-1]

    def fixed(self, count: int, **more: Any) -> list[Node]:
        return [self.node(number, planned=count, least=count, most=count, **more) for number in range(count)]

    def elastic(self, count: int, least: int, most: int, **more: Any) -> list[Node]:
        return [self.node(number, planned=count, least=least, most=most, **more) for number in range(count)]

    def says(self, epoch: int, nodes: set[int], *to: Node, ended: frozenset[int] = frozenset()) -> None:
        """Run control says who takes part: to some nodes, or to all."""
        for node in to or self.nodes:
            node.participants = Participants(epoch, frozenset(nodes), ended)

    def come(self, *nodes: Node) -> list[Future[World]]:
        return [self.pool.submit(node.rounds.next) for node in nodes]

    def meet(self, *nodes: Node) -> list[World]:
        """All of them come, and take part."""
        return [future.result(PATIENCE) for future in self.come(*nodes)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.pool.shutdown(cancel_futures=True)


def until(condition: Any) -> None:
    done = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        done.wait(0.01)
    pytest.fail("it never came about")


def test_nodes_are_in_inventory_order_whoever_comes_first(cluster: Cluster) -> None:
    zero, one, two = cluster.fixed(3)
    late = cluster.come(two, one)
    assert not any(future.done() for future in late)
    first = zero.rounds.next()
    assert first == World((0, 1, 2), "10.0.0.0", 29400)
    assert [future.result(PATIENCE) for future in late] == [first, first]
    assert not any(node.rounds.superseded() for node in (zero, one, two))


def test_a_node_that_wants_the_workers_again_gets_all_to_the_next_round(cluster: Cluster) -> None:
    nodes = cluster.fixed(2)
    cluster.meet(*nodes)
    (waiting,) = cluster.come(nodes[1])
    until(nodes[0].rounds.superseded)
    assert nodes[0].rounds.next() == waiting.result(PATIENCE)
    assert [node.rounds.number for node in nodes] == [1, 1]
    cluster.meet(*nodes)  # both at once: one round, not two
    assert [node.rounds.number for node in nodes] == [2, 2]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_whom_run_control_excludes_nobody_waits_for(cluster: Cluster, lost: int) -> None:
    nodes = cluster.elastic(3, 2, 3)
    cluster.meet(*nodes)
    left = [node for node in nodes if node.job.node != lost]
    cluster.says(1, {0, 1, 2} - {lost}, *left)
    until(lambda: all([node.rounds.superseded() for node in left]))  # noqa: C419 - each is to look
    (world, same) = cluster.meet(*left)
    assert world == same
    assert world.nodes == tuple(node.job.node for node in left)
    assert world.address == f"10.0.0.{left[0].job.node}"
    assert any(f"{NAMES[lost]}: gone, by run control" in line for node in left for line in node.told)


def test_while_ranks_are_exchanged_each_node_knows_whether_its_round_can_begin(cluster: Cluster) -> None:
    nodes = cluster.elastic(3, 2, 3)
    cluster.meet(*nodes)
    assert [node.rounds.obstacle() for node in nodes] == ["", "", ""]
    cluster.says(1, {0, 2}, nodes[0])
    assert nodes[0].rounds.obstacle() == "gpu01: gone, by run control, before the workers were started"
    assert nodes[2].rounds.obstacle() == ""
    nodes[0].rounds.raise_round(0)  # as one that comes late does
    assert nodes[2].rounds.obstacle() == ""


def test_a_node_whose_supervisor_has_stopped_starts_the_others_never_again(cluster: Cluster) -> None:
    """Its agent lives, comes to the round of the others first, and knows nothing of being excluded."""
    nodes = cluster.elastic(3, 2, 3, join_timeout=3.0)
    cluster.meet(*nodes)
    cluster.says(1, {0, 1}, *nodes[:2])
    until(lambda: all([node.rounds.superseded() for node in nodes]))  # noqa: C419 - each is to look
    (stale,) = cluster.come(nodes[2])
    until(lambda: nodes[2].store.check(["1/came/1"]))
    assert [world.nodes for world in cluster.meet(*nodes[:2])] == [(0, 1), (0, 1)]
    with pytest.raises(NoRound, match="gpu02 takes no part any more, by run control"):
        stale.result(PATIENCE)
    assert not any(node.rounds.superseded() for node in nodes[:2])
    assert nodes[0].store.get("round") == b"1"


def test_a_node_that_is_back_takes_part_again(cluster: Cluster) -> None:
    nodes = cluster.elastic(3, 2, 3)
    cluster.meet(*nodes)
    cluster.says(1, {0, 1}, *nodes[:2])
    until(lambda: all([node.rounds.superseded() for node in nodes]))  # noqa: C419 - each is to look
    (back,) = cluster.come(nodes[2])
    cluster.meet(*nodes[:2])
    cluster.says(2, {0, 1, 2})
    until(lambda: all([node.rounds.superseded() for node in nodes[:2]]))  # noqa: C419 - each is to look
    assert [world.nodes for world in cluster.meet(*nodes[:2])] == [(0, 1, 2)] * 2
    assert back.result(PATIENCE).nodes == (0, 1, 2)


def test_an_excluded_node_ends_its_workers_and_asks_for_no_round(cluster: Cluster) -> None:
    nodes = cluster.elastic(3, 2, 3, join_timeout=0.5)
    cluster.meet(*nodes)
    cluster.says(1, {0, 1}, nodes[2])
    until(nodes[2].rounds.superseded)
    with pytest.raises(NoRound, match="gpu02 takes no part any more"):
        nodes[2].rounds.next()
    assert nodes[0].store.get("round") == b"0"


def test_an_elastic_start_does_not_wait_for_a_host_that_was_lost_before_it_came(cluster: Cluster) -> None:
    first, last = cluster.node(0, planned=3, least=2, most=3), cluster.node(2, planned=3, least=2, most=3)
    came = cluster.come(first, last)
    cluster.says(1, {0, 2})
    assert [future.result(first.job.first_arrival_timeout / 2).nodes for future in came] == [(0, 2), (0, 2)]


def test_a_node_that_has_ended_well_starts_nothing_again_and_is_not_waited_for(cluster: Cluster) -> None:
    nodes = cluster.elastic(3, 2, 3)
    cluster.meet(*nodes)
    cluster.says(1, {0, 2}, ended=frozenset({1}))
    nodes[0].rounds.next_poll_at = nodes[2].rounds.next_poll_at = 0.0
    assert not nodes[0].rounds.superseded()
    assert not nodes[2].rounds.superseded()
    assert [world.nodes for world in cluster.meet(nodes[0], nodes[2])] == [(0, 2), (0, 2)]


def wait_at_the_end(cluster: Cluster, node: Node, limit: float = PATIENCE) -> Future[None]:
    """As torchrun's agents do once their workers have ended: torch's own barrier over the round's store."""
    handler = importlib.import_module("clusterddp.remote.rendezvous.handler")
    barrier = importlib.import_module("torch.distributed.elastic.utils.store").barrier
    waits = SimpleNamespace(rounds=node.rounds)  # of a Handler, all that this needs
    store = handler.RoundStore(f"{node.rounds.number}/agents", node.store, waits)
    return cluster.pool.submit(barrier, store, len(node.rounds.world.nodes), "end", limit)  # type: ignore[union-attr]


def at_the_end(*nodes: Node) -> bool:
    """Whether they are all at the end, and not gone on."""
    return all(node.store.add("0/agents/end/num_members", 0) == len(nodes) for node in nodes)


def test_whose_workers_have_ended_wait_for_the_others(cluster: Cluster) -> None:
    nodes = cluster.elastic(3, 2, 3)
    cluster.meet(*nodes)
    early = [wait_at_the_end(cluster, node) for node in nodes[:2]]
    until(lambda: at_the_end(*nodes[:2]))
    assert not any(future.done() for future in early)
    wait_at_the_end(cluster, nodes[2]).result(PATIENCE)
    assert [future.result(PATIENCE) for future in early] == [None, None]


def test_whose_workers_have_ended_wait_for_none_that_is_excluded(cluster: Cluster) -> None:
    nodes = cluster.elastic(3, 2, 3)
    cluster.meet(*nodes)
    early = [wait_at_the_end(cluster, node) for node in nodes[:2]]
    until(lambda: at_the_end(*nodes[:2]))
    cluster.says(1, {0, 1}, *nodes[:2])
    assert [future.result(PATIENCE / 2) for future in early] == [None, None]
    assert nodes[0].told == ["gpu02: gone, by run control; nobody waits for the end of its workers"]


def test_whose_workers_have_ended_let_the_others_start_again_without_them(cluster: Cluster) -> None:
    nodes = cluster.elastic(3, 2, 3)
    cluster.meet(*nodes)
    early = wait_at_the_end(cluster, nodes[0])
    again = cluster.come(*nodes[1:])
    early.result(PATIENCE / 2)
    cluster.says(1, {1, 2}, ended=frozenset({0}))
    assert {future.result(PATIENCE).nodes for future in again} == {(1, 2)}


def test_a_node_that_is_back_soon_is_waited_for_where_no_other_attempt_may_have_begun(cluster: Cluster) -> None:
    one, other, away = cluster.elastic(3, 2, 3, absence_timeout=PATIENCE)
    cluster.meet(one, other, away)
    clock = [100.0]
    one.rounds.now = lambda: clock[0]
    cluster.says(1, {0, 1})
    assert not one.rounds.can_stop_waiting()
    clock[0] += PATIENCE - 1
    assert not one.rounds.can_stop_waiting()
    cluster.says(2, {0, 1, 2})
    assert not one.rounds.can_stop_waiting()
    cluster.says(3, {0, 1})
    assert not one.rounds.can_stop_waiting()
    clock[0] += PATIENCE
    assert one.rounds.can_stop_waiting()


def test_in_a_job_of_a_fixed_size_the_wait_for_the_others_ends_by_its_own_limit(cluster: Cluster) -> None:
    one, other = cluster.fixed(2)
    cluster.meet(one, other)
    cluster.says(1, {0})
    waits = wait_at_the_end(cluster, one, 0.5)
    with pytest.raises(RuntimeError):
        waits.result(PATIENCE)


def test_a_job_of_a_fixed_size_does_not_start_again_without_a_node(cluster: Cluster) -> None:
    nodes = cluster.fixed(2, join_timeout=3.0)
    cluster.meet(*nodes)
    cluster.says(1, {0})
    nodes[0].rounds.next_poll_at = 0.0
    assert not nodes[0].rounds.superseded()  # whether the job goes on is for run control to say
    with pytest.raises(NoRound, match=r"gpu01 did not come to round 1 within 3 s"):
        nodes[0].rounds.next()


def test_fewer_nodes_than_the_least_start_nothing(cluster: Cluster) -> None:
    nodes = cluster.elastic(3, 2, 3)
    cluster.meet(*nodes)
    cluster.says(1, {1}, nodes[1])
    until(nodes[1].rounds.superseded)
    with pytest.raises(NoRound, match=r"only 1 nodes are left, and 2 are needed: gpu00, gpu02 gone"):
        nodes[1].rounds.next()


def test_when_the_first_to_come_is_lost_the_next_one_decides(cluster: Cluster) -> None:
    nodes = cluster.elastic(3, 2, 3)
    cluster.meet(*nodes)
    nodes[0].store.add("1/came", 1)
    nodes[0].store.set("1/came/1", '[0, "10.0.0.0", 29400, 0]')
    cluster.says(1, {1, 2}, *nodes[1:])
    others = cluster.come(nodes[1], nodes[2])
    assert [future.result(nodes[1].job.silence_timeout).nodes for future in others] == [(1, 2), (1, 2)]


@pytest.mark.parametrize("record", [None, '[0, "10.0.0.0", 29400, 0]'])
def test_a_first_node_that_stands_still_is_not_waited_for(cluster: Cluster, record: str | None) -> None:
    """Stopped, before or after it has said who it is; run control knows nothing of it."""
    nodes = cluster.elastic(3, 2, 3, later_arrival_timeout=0.2)
    cluster.meet(*nodes)
    nodes[0].store.add("1/came", 1)
    if record:
        nodes[0].store.set("1/came/1", record)
    others = cluster.come(nodes[1], nodes[2])
    worlds = [future.result(PATIENCE).nodes for future in others] if not record else []
    assert worlds == ([(1, 2), (1, 2)] if not record else [])
    if record:
        until(lambda: nodes[1].store.check(["1/world"]))
        if nodes[0].store.add("1/ready", 1) == len(nodes):
            nodes[0].store.set("1/go", "go")
        assert [future.result(PATIENCE).nodes for future in others] == [(0, 1, 2), (0, 1, 2)]


def test_a_node_that_comes_late_brings_about_a_round_with_it(cluster: Cluster) -> None:
    first = cluster.elastic(2, 1, 3)
    assert [world.nodes for world in cluster.meet(*first)] == [(0, 1), (0, 1)]
    late = cluster.node(2, planned=3, least=1, most=3)
    (waiting,) = cluster.come(late)
    until(lambda: all(node.rounds.superseded() for node in first))
    assert [world.nodes for world in cluster.meet(*first)] == [(0, 1, 2)] * 2
    assert waiting.result(PATIENCE).nodes == (0, 1, 2)


def test_an_elastic_start_does_not_wait_for_ever_for_a_node_of_the_plan(cluster: Cluster) -> None:
    nodes = cluster.elastic(3, 2, 3, first_arrival_timeout=0.2)
    assert [world.nodes for world in cluster.meet(*nodes[:2])] == [(0, 1), (0, 1)]
    assert [line for node in nodes for line in node.told] == ["round 0 goes on without gpu02"]


def test_a_first_node_without_a_free_port_says_so(cluster: Cluster) -> None:
    zero = cluster.node(0, planned=1, least=1, most=1)
    zero.rounds.store_address = lambda: ("10.0.0.0", 0)
    with pytest.raises(NoRound, match="gpu00 has no free port for MASTER_PORT"):
        zero.rounds.next()


def test_many_nodes_ask_the_store_less_often() -> None:
    few, many = (
        RoundSpec(node=0, names=NAMES, min_nodes=count, max_nodes=count, join_timeout=1.0) for count in (2, 4000)
    )
    assert few.poll <= 0.05
    assert many.poll == pytest.approx(1.0)
    assert many.pause > few.pause
    assert many.silence_timeout > few.silence_timeout
