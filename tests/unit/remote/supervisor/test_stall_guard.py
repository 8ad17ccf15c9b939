"""The stall guard among three nodes: run control over the loopback is real, what the workers do is given."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.control import heartbeats, leader
from clusterddp.remote.control.connection import Secret
from clusterddp.remote.control.leader import Control
from clusterddp.remote.control.look_messages import LookPart, LookRequest
from clusterddp.remote.control.membership import Membership
from clusterddp.remote.control.messages import NodeState, NodeStatus
from clusterddp.remote.shared.collectives.stall_clock import StallClock
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.supervisor import stall_guard
from clusterddp.remote.supervisor.file_work import FileWork
from clusterddp.remote.supervisor.shutdown import Shutdown
from clusterddp.remote.supervisor.stall_guard import StallGuard
from clusterddp.remote.system.clock import boot_clock
from tests.unit.plan_made import PLAN, changed
from tests.unit.remote.control.test_leader import KEY
from tests.unit.remote.control.test_membership import Run
from tests.unit.remote.shared.collectives.traces_made import worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterddp.remote.control.control_events import Event
    from clusterddp.remote.shared.collectives.hang_judge import Finding
    from clusterddp.remote.shared.collectives.stall_clock import Look

LIMIT = 0.8  # seconds; a look every 0.2
HANGS = ["ar4 ar4 ar4*", "ar4 ar4", "ar4 ar4 ar4*"]  # what each node's one worker does
SENTENCE = "rank 1 (gpu01:0) did not join all_reduce #3 of group default (float32 [4]): it is waiting; ranks 0,2 wait"


class Guarded(Run):
    """Three nodes with a guard each."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(3, folder)
        self.guards: dict[int, StallGuard] = {}
        self.does = list(HANGS)
        self.asked: list[LookRequest] = []
        self.again = 0  # how often all workers were started again
        self.silent: set[str] = set()  # hosts whose workers cannot be asked
        record = RunRecord(hosts=tuple(self.names), max_restarts=settings.pop("max_restarts", 0))
        self.plan = changed(PLAN, record=record, **settings)

    def member(self, index: int) -> Membership:
        made: dict[str, Any] = {}

        def take(event: Event) -> None:
            made["membership"].handle_event(event)
            made["guard"].handle_event(event)

        control = Control(Secret(KEY, "run", index), self.selector, take, self.listeners[index])
        control.begin(self.addresses)
        known = made["membership"] = Membership(control, list(self.names), lambda *_: None, self.keeper(index))
        known.begin(1, range(3), limit=1e9)
        spool = Spool(str(self.folder / "runs" / "run1" / "1" / f"{index}-gpu{index:02}"))
        (self.folder / "runs" / "run1" / "1" / f"{index}-gpu{index:02}").mkdir(parents=True)
        node: Any = SimpleNamespace(
            member=index, plan=self.plan, spool=spool, shutdown=Shutdown(), membership=known,
            loop=SimpleNamespace(wake=lambda: None), work=FileWork(lambda: None),
            conditions=SimpleNamespace(control=control, stalled="", limits=SimpleNamespace(lost=0.1)),
        )  # fmt: skip
        made["guard"] = self.guards[index] = StallGuard(node, LIMIT)
        self.nodes[index], self.known[index], self.heard[index] = control, known, []
        known.publish(NodeStatus(NodeState.RUNNING, 1))
        return known

    def look(self, spool: Spool, request: LookRequest) -> LookPart:
        """What a node's worker does, in place of asking it."""
        self.asked.append(request)
        if spool.host in self.silent:
            raise OSError("a disk does not answer")
        rank = int(spool.host[-2:])
        trace = worker(rank, self.does[rank])
        traces = (trace._replace(start=trace.start + self.again),)
        return LookPart(1, request.number, 0, 1, 3, debugged=False, traces=traces, stacks=())

    def turn(self) -> None:
        super().turn()
        for index in self.nodes:
            try:
                self.guards[index].turn()
            except OSError:  # the loop records it
                assert f"gpu{index:02}" in self.silent

    def sees(self, looks: int) -> None:
        """Until all have been asked so often anew."""
        before = len({request.number for request in self.asked})
        self.until(lambda: len({request.number for request in self.asked}) >= before + looks)

    def lines(self, index: int) -> list[str]:
        return [event.reason for event in self.guards[index].node.spool.events()]

    def leading(self, index: int) -> bool:
        return self.nodes[index].leading and self.nodes[index].settled


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LEADER_TIMEOUT": 0.3, "RETRY_INTERVAL": 0.05, "ASK_INTERVAL": 0.1}.items():
        monkeypatch.setattr(leader, name, value)
    for name, value in {"HEARTBEAT_INTERVAL": 0.1, "UNANSWERED_INTERVAL": 0.05}.items():
        monkeypatch.setattr(heartbeats, name, value)
    monkeypatch.setattr(stall_guard, "ANSWER_TIMEOUT", 0.4)
    monkeypatch.setattr(stall_guard, "PROOF_PAUSE", 0.05)


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Guarded]]:
    """Starts the three nodes with these settings."""
    made: list[Guarded] = []

    def start(**settings: Any) -> Guarded:
        made.append(Guarded(tmp_path, **settings))
        monkeypatch.setattr(stall_guard, "look_at_workers", made[0].look)
        for index in range(3):
            made[0].member(index)
        return made[0]

    yield start
    for run in made:
        run.close()


def test_a_stall_is_told_to_all_nodes_once(begin: Callable[..., Guarded]) -> None:
    run = begin()
    run.until(lambda: all(run.lines(index) for index in range(3)))
    run.sees(3)
    for index in range(3):
        (line,) = run.lines(index)
        assert line.startswith(f"stalled: {SENTENCE}")
    assert {request.ranks for request in run.asked if request.ranks} == {(1, 0)}  # stacks, once it was proved
    assert not any(guard.node.conditions.stalled for guard in run.guards.values())


def test_a_stall_of_workers_that_were_started_again_is_told_with_their_start(begin: Callable[..., Guarded]) -> None:
    run = begin()
    for run.again in range(2):
        run.until(lambda: all(len(run.lines(index)) > run.again for index in range(3)))
    for guard in run.guards.values():
        told = [(event.start, event.reason) for event in guard.node.spool.events()]
        assert told[1][0] == told[0][0] + 1
        assert len({reason for _, reason in told}) == 1


def test_the_run_is_told_to_stop_by_its_leader_alone(begin: Callable[..., Guarded]) -> None:
    run = begin(on_stall="stop")
    run.until(lambda: run.guards[0].node.conditions.stalled)
    assert run.guards[0].node.conditions.stalled.startswith(SENTENCE)
    asked = len(run.asked)
    for _ in range(10):
        run.turn()
    assert len(run.asked) == asked  # an end that is under way needs no looks


def test_one_worker_that_is_to_blame_is_killed_while_restarts_are_left(
    begin: Callable[..., Guarded], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        stall_guard, "kill_worker", lambda spool, notice: killed.append((spool.host, notice.start, notice.local_rank))
    )
    run = begin(on_stall="restart", max_restarts=1)
    run.until(lambda: killed and run.lines(0) and run.lines(2))
    assert killed == [("gpu01", 0, 0)]
    assert run.lines(0)[0].endswith("; its workers are started again (1 of 1)")
    run.does = [f"[start:1] {text}" for text in HANGS]
    run.until(lambda: run.guards[0].node.conditions.stalled)
    assert run.guards[0].node.conditions.stalled.endswith("; no restart is left")
    assert len(killed) == 1


@pytest.mark.parametrize("made", [0, 1])
def test_starts_after_hosts_left_or_joined_use_up_no_restart(
    begin: Callable[..., Guarded], monkeypatch: pytest.MonkeyPatch, made: int
) -> None:
    killed: list[str] = []
    monkeypatch.setattr(stall_guard, "kill_worker", lambda spool, _notice: killed.append(spool.host))
    run = begin(on_stall="restart", max_restarts=2)
    run.does = [f"[start:3] [restarts:{made * (rank == 2)}] {text}" for rank, text in enumerate(HANGS)]
    run.until(lambda: killed and run.lines(0))
    assert run.lines(0)[0].endswith(f"; its workers are started again ({made + 1} of 2)")
    run.does = [f"[start:4] [restarts:{int(rank == 1)}] {text}" for rank, text in enumerate(HANGS)]
    run.until(lambda: len(run.lines(0)) == 2)
    assert run.lines(0)[1].endswith("; its workers are started again (2 of 2)")
    run.does = [f"[start:5] [restarts:0] {text}" for text in HANGS]  # a new agent on each host, as far as that goes
    run.until(lambda: run.guards[0].node.conditions.stalled)
    assert len(killed) == 2  # the guard counts its own


def judges_slowly(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The judge answers only from the event on."""
    goes_on, see = threading.Event(), StallClock.see

    def see_slowly(clock: StallClock, look: Look) -> Finding | None:
        goes_on.wait(60)
        return see(clock, look)

    monkeypatch.setattr(StallClock, "see", see_slowly)
    return goes_on


def being_judged(
    begin: Callable[..., Guarded], monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, Guarded, StallGuard]:
    """A run whose leader has a complete look, with that leader's guard; the judge answers from the event on."""
    goes_on, run = judges_slowly(monkeypatch), begin()
    guard = run.guards[0]
    run.until(lambda: guard.round and guard.looks.is_asked(guard.round.judgement))
    return goes_on, run, guard


def test_what_was_judged_for_a_leader_that_leads_no_more_is_dropped(
    begin: Callable[..., Guarded], monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, run, guard = being_judged(begin, monkeypatch)
    assert guard.round
    judged = guard.round.judgement
    monkeypatch.setattr(guard, "_leads", lambda: False)
    run.turn()
    assert not guard.looks.is_asked(judged)
    goes_on.set()
    monkeypatch.undo()


def test_a_look_that_takes_long_to_be_judged_counts(
    begin: Callable[..., Guarded], monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, run, guard = being_judged(begin, monkeypatch)
    judged = guard.round
    monkeypatch.setattr(stall_guard, "ANSWER_TIMEOUT", 0.0)
    for _ in range(10):
        run.turn()
    assert guard.round is judged
    goes_on.set()
    run.until(lambda: guard.round is not judged)
    assert guard.clock.started


def test_while_a_node_cannot_be_asked_nothing_is_told(begin: Callable[..., Guarded]) -> None:
    run = begin()
    run.silent = {"gpu02"}
    run.sees(8)
    assert not any(run.lines(index) for index in range(3))
    run.silent.clear()
    run.until(lambda: run.lines(2))


def test_while_a_node_of_the_attempt_may_come_back_nobody_is_asked(begin: Callable[..., Guarded]) -> None:
    run = begin()
    run.sees(1)
    known = run.known[0]
    part = known.participants
    assert part
    assert run.guards[0]._members() == {0, 1, 2}
    known.participants = part._replace(members=part.members[:2])
    assert (known.excluded, run.guards[0]._members()) == ((2,), frozenset({0, 1}))
    known.missing[2] = boot_clock() + 60
    assert run.guards[0]._members() == frozenset()


def test_a_new_leader_counts_anew_and_repeats_nothing(begin: Callable[..., Guarded]) -> None:
    run = begin()
    for known in run.known.values():
        known.limit = 0.1
    run.until(lambda: all(run.lines(index) for index in range(3)))
    run.loses(0)
    run.until(lambda: run.leading(1) and run.guards[1].clock.started)
    assert not run.guards[1].ranks
    run.does[0] = "[dumb]"
    run.sees(8)
    assert (len(run.lines(1)), len(run.lines(2))) == (1, 1)


def test_of_two_leaders_neither_tells_what_it_does_not_see_whole(begin: Callable[..., Guarded]) -> None:
    run = begin()
    run.until(lambda: run.guards[0].clock.started)
    nowhere = ("127.0.0.1", 9)
    cut_off, lead = run.nodes[2], run.nodes[0]
    cut_off.addresses[:] = [nowhere, nowhere, cut_off.addresses[2]]
    lead.addresses[2] = run.nodes[1].addresses[2] = nowhere
    for link in list(cut_off.links):
        cut_off._drop(link)
    run.until(lambda: cut_off.leading and run.leading(0) and 2 not in lead.connected)
    run.sees(6)
    assert not any(run.lines(index) for index in range(3))
    assert run.guards[2].round is None  # without a majority it does not even ask


def test_what_hosts_say_of_their_workers_is_one_line_without_escapes(begin: Callable[..., Guarded]) -> None:
    run = begin()
    run.does = [f"0/a\x1b[2J\u2028b: {text}" for text in HANGS]
    run.until(lambda: run.lines(0))
    assert "of group a?[2J?b" in run.lines(0)[0]
