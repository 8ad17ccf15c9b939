"""What is told while a run is followed: a thread asks for the run's state when a frame gives it reason to."""

from __future__ import annotations

from queue import Queue
from typing import TYPE_CHECKING, cast

from clusterddp.logs.checked_frames import LogHeader, RunStalled, WorkersStarted
from clusterddp.logs.merge import FrameArrived
from clusterddp.runs.watch import RunWatch
from tests.unit.runs.test_restarts import begins, host, view

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.logs.checked_frames import LogFrame
    from clusterddp.runs.run_on_hosts import RunOnHosts
    from clusterddp.runs.view.run_view import RunView

LINE = "stalled: rank 1 (gpu01:0) did not join all_reduce #4"


class Run:
    """A run that is asked for its state; ``answers``: what it answers to each question, the last one ever after."""

    id, attempt, hosts = "r1", 1, frozenset({"gpu00"})

    def __init__(self, *answers: Callable[[], RunView]) -> None:
        self.answers = list(answers)
        self.told: Queue[tuple[str, str]] = Queue()
        self.watch = RunWatch(cast("RunOnHosts", self), lambda *said: self.told.put(said), silence=0)
        self.watch._began_ns = 0

    def view(self, *_: object, **_options: object) -> RunView:
        return (self.answers.pop(0) if self.answers[1:] else self.answers[0])()

    def hears(self, frame: LogFrame) -> None:
        self.watch.note_events([FrameArrived(host="gpu00", frame=frame)])

    def tells(self) -> tuple[str, str]:
        """The next that is told."""
        return self.told.get(timeout=10)


def test_a_stall_whose_frame_comes_while_a_round_is_gathered_is_told_when_that_is_done() -> None:
    nodes = host(0), host(1)
    begins(*nodes, number=0, seconds=0)
    begins(nodes[0], number=1, seconds=9, nodes=2)

    def stalls() -> RunView:
        nodes[0].event("stalled", 10, reason=LINE, start=1, local_rank=0, pid=None)
        run.hears(RunStalled(count=1))
        return view(*nodes)

    def goes_on() -> RunView:
        begins(*nodes, number=1, seconds=9)
        return view(*nodes)

    run = Run(lambda: view(*nodes), stalls, goes_on, lambda: view(*nodes))
    with run.watch:
        run.hears(WorkersStarted(start=1))
        assert run.tells()[0] == "restarted"
        assert run.tells() == ("stalled", LINE)


def test_the_same_stall_in_the_next_attempt_is_told_again() -> None:
    node = host(0, hosts=1)
    node.event("stalled", 10, reason=LINE, start=0, local_rank=0, pid=None)
    run = Run(lambda: view(node))
    with run.watch:
        run.hears(RunStalled(count=1))
        assert run.tells() == ("stalled", LINE)
        node.fields["attempt"] = 2
        run.hears(LogHeader(run="r1", attempt=2, clock_error_ns=0))
        run.hears(RunStalled(count=1))
        assert run.tells() == ("stalled", LINE)


def test_a_stall_in_the_same_words_of_workers_that_were_started_again_is_told_too() -> None:
    node = host(0, hosts=1)
    run = Run(lambda: view(node))
    with run.watch:
        for start in (0, 1):
            node.event("stalled", 10 + start, reason=LINE, start=start, local_rank=0, pid=None)
            run.hears(RunStalled(count=1 + start))
            assert run.tells() == ("stalled", LINE)


def test_a_round_after_a_failure_whose_workers_start_is_not_on_record_is_told_and_so_is_what_follows() -> None:
    nodes = host(0), host(1)
    nodes[1].died(5, raised="ValueError: loss is NaN")
    begins(*nodes, number=1, seconds=8)
    run = Run(lambda: view(*nodes))
    with run.watch:
        run.hears(WorkersStarted(start=1))
        assert run.tells() == ("restarted", "restart 1 of 3: rank 1 failed with ValueError: loss is NaN (train.py:81)")
        nodes[0].event("stalled", 10, reason=LINE, start=1, local_rank=0, pid=None)
        run.hears(RunStalled(count=1))
        assert run.tells() == ("stalled", LINE)
