"""The threads of a worker's server answer in turn, however late each sleeps: one makes the traces of all looks."""

from __future__ import annotations

import os
import sys
from collections import deque
from pathlib import Path
from random import Random

import pytest

from clusterddp.remote.processes import server_threads, traces
from clusterddp.remote.processes.worker_server import NoAnswerError, UnknownHandlerError
from clusterddp.remote.processes.worker_threads import ThreadTimes
from clusterddp.remote.shared.run.event_schema import WORKER_STARTED, NodeEvent
from clusterddp.remote.spool.layout import Spool
from tests.unit.remote.processes.traces_made import entry, trace

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

PID = os.getpid()
EVER = 10**9


class Pool:
    """Torch's server: a question wakes the thread that slept longest, but one that is still awake takes it first.

    It is the clock too: while somebody sleeps the threads that have answered come nearer to their sleep.
    """

    def __init__(self, size: int, late: Random) -> None:
        self.late, self.now = late, 100.0
        self.first, *threads = [str(PID + number) for number in range(1, size + 2)]
        self.asleep = deque(threads)
        self.awake: dict[str, int] = {}  # thread → pauses until it sleeps
        self.ran = dict.fromkeys([self.first, *threads], 0)
        self.traced: list[str] = []  # the thread that made each trace
        self.reads = 0

    def ask(self, _path: str, handler: str, *, timeout: float, limit: int) -> bytes:
        assert limit > 0
        if timeout <= 0:
            raise NoAnswerError("it does not answer")
        thread = next(iter(self.awake), "") or self.asleep.popleft()
        self.awake[thread] = self.late.randint(0, 3)
        self.ran[self.first] += 1
        self.ran[thread] += 1
        self.pause(only=0)
        if handler == "dump_nccl_trace_json":
            raise UnknownHandlerError("")
        self.traced += [thread] * (handler == "fr_trace_json")
        return trace(entry(1)) if handler == "fr_trace_json" else b"{}"

    def pause(self, _seconds: float = 0.0, *, only: int = EVER) -> None:
        for thread, pauses in list(self.awake.items()):
            self.awake[thread] -= only > 0
            if pauses - (only > 0) <= 0:
                del self.awake[thread]
                self.asleep.append(thread)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pause()

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 10**9)

    def state(self, folder: str) -> list[str]:
        self.reads += 1
        return ["R" if folder.rpartition("/")[2] in self.awake else "S"]

    def times(self, path: str) -> str:
        self.reads += 1
        return str(self.ran[path.split("/")[-2]])


def look_often(spool: Spool, pool: Pool, times: int) -> list[str]:
    """Look so often, each look right after the last; return why there were no traces."""
    Path(spool.trace_socket("0.0")).touch()
    event = NodeEvent(WORKER_STARTED, 0, local_rank=0, rank=0, pid=PID)
    with pytest.MonkeyPatch.context() as patch:
        for module in (traces, server_threads):
            patch.setattr(module, "time", pool)
        patch.setattr(server_threads, "stat_fields", pool.state)
        patch.setattr(server_threads, "text_of", pool.times)
        patch.setattr(os, "sysconf", lambda name: len(pool.ran) if name == "SC_NPROCESSORS_ONLN" else 100)
        patch.setattr(traces, "ask", pool.ask)
        patch.setattr(traces, "is_open", lambda _pid, _path: True)
        patch.setattr(traces, "look_at_threads", lambda _pid: ThreadTimes((), 0, tuple(pool.ran)))
        return [traces.look_at(spool, event, {}, pool.now + traces.TIMEOUT).trace.why for _ in range(times)]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = Spool(str(tmp_path))
    Path(spool.traces).mkdir(0o700)
    return spool


@pytest.fixture
def late() -> Random:
    return Random(26)


@pytest.mark.parametrize("size", [8, 63])
def test_one_thread_makes_all_traces_though_each_sleeps_late(spool: Spool, late: Random, size: int) -> None:
    pool = Pool(size, late)
    assert {*look_often(spool, pool, 50)} == {""}
    assert len(pool.traced) == 50
    assert len({*pool.traced}) == 1


def test_of_many_threads_few_are_looked_at(spool: Spool, late: Random) -> None:
    pool = Pool(63, late)
    look_often(spool, pool, 1)
    pool.reads = 0
    look_often(spool, pool, 10)
    assert pool.reads / 10 < 12 * 63  # each look at all after each question would be 63 times 63


def test_a_thread_that_never_sleeps_costs_a_look_its_limit_and_no_trace(spool: Spool, late: Random) -> None:
    pool = Pool(8, late)
    pool.awake[pool.asleep.popleft()] = EVER
    began = pool.now
    assert look_often(spool, pool, 1) == [""]
    assert len(pool.traced) == 1
    assert traces.MAX_PASSING <= pool.now - began <= traces.MAX_PASSING + 0.01


def test_a_worker_that_has_ended_is_not_waited_for(late: Random) -> None:
    pool = Pool(8, late)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_threads, "time", pool)
        threads = server_threads.ServerThreads(1 << 30, list(pool.ran))
        threads.rest(pool.now + 5)
        threads.rest_again(pool.now + 5)
    assert pool.now == 100.0
