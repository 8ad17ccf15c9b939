"""What live workers do in their collective operations, asked of torch's own server in each of them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.helper.request import Request
from clusterddp.remote.processes import stacks, traces
from clusterddp.remote.shared.collectives.trace_records import DONE, LAST_ENTRIES, SLEEP, WorkerTrace
from clusterddp.remote.shared.schema.record import read_record
from clusterddp.remote.spool.layout import Spool
from tests.integration.real_helper import alive
from tests.integration.shim_spool import ShimSpool, environment, make_spool, wait_for
from tests.with_torch import need_torch

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

need_torch("the server for traces is torch's")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

GROUP = """
import ctypes, os, sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store-{os.environ['RANK']}", rank=0, world_size=1)
def work(count):
    for _ in range(count): dist.all_reduce(torch.zeros(4))
"""
# ctypes.PyDLL keeps the interpreter's lock while C reads: no Python thread can run.
HOLDS = "ours, _ = os.pipe()\nctypes.PyDLL(None).read(ours, bytes(1), 1)\n"
READY = "print('ready', flush=True)\n"


@pytest.fixture
def spool(tmp_path: Path) -> ShimSpool:
    return make_spool(tmp_path)


@contextlib.contextmanager
def worker(
    spool: ShimSpool, text: str, *, local_rank: int = 0, server: bool = True, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A worker that has said that it is ready: its shim, its pid."""
    script = f"train-{local_rank}.py"
    (spool.cwd / script).write_text(GROUP + text)
    env = environment(RANK=str(3 + local_rank), LOCAL_RANK=str(local_rank), **variables)
    with spool.popen("-u", script, env=env) as process:
        pid = 0
        try:
            out = spool.folder / "logs" / f"0.{local_rank}.out"
            wait_for(lambda: out.exists() and out.read_text(), "the script")
            events = spool.events("worker_started")
            pid = next(int(event["pid"]) for event in events if event.get("local_rank", 0) == local_rank)
            if server and not (spool.folder / "traces" / f"0.{local_rank}").exists():
                pytest.skip("this torch has no server for traces")
            yield process, pid
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid or process.pid, signal.SIGKILL)


def ask(spool: ShimSpool) -> list[WorkerTrace]:
    answer = traces.traces(Request(0, {"spool": str(spool.folder)}, -1, -1))
    return [read_record(WorkerTrace, one, "trace") for one in answer]


def is_asked(*_question: object, **_limits: object) -> bytes:
    raise AssertionError("this worker cannot answer, and need not be asked")


def answered(spool: ShimSpool) -> WorkerTrace:
    """The one worker's answer: on a busy machine a look may end before it has come."""
    looks: list[WorkerTrace] = []

    def is_answered() -> bool:
        looks[:] = ask(spool)
        return not looks[0].why

    wait_for(is_answered, "an answer")
    return looks[0]


def rows(trace: WorkerTrace) -> list[tuple[int, int]]:
    """Sequence number and progress of a worker's operations in its one group."""
    (group,) = trace.groups
    assert (group.name, group.description) == ("0", "default_pg")
    return [(row[0], row[2]) for row in group.entries]


def test_one_that_holds_the_interpreter_in_c_answers_two_who_ask_at_once(spool: ShimSpool) -> None:
    with worker(spool, "work(100)\n" + READY + HOLDS), ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: ask(spool), range(6)))
    for (trace,) in answers:
        assert (trace.rank, trace.why, trace.state) == (3, "", "S")
        assert rows(trace) == [(number, DONE) for number in range(101 - LAST_ENTRIES, 101)]
        (operation,) = trace.groups[0].operations
        assert (operation.name, operation.shape) == ("all_reduce", "float32 [4]")


def test_many_looks_cost_a_worker_little_and_are_no_work_of_it(spool: ShimSpool) -> None:
    def memory(pid: int) -> float:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)

    unseen = "assert 'TORCH_FR_BUFFER_SIZE' not in os.environ\n"
    with worker(spool, "work(2000)\n" + unseen + READY + "time.sleep(600)\n") as (_, pid):
        before = memory(pid)
        first = answered(spool)
        for _ in range(20):
            last = answered(spool)
            assert len(rows(last)) == LAST_ENTRIES
        grown = memory(pid) - before
    assert [(wait.thread, wait.how) for wait in last.threads] == [(pid, SLEEP)]
    assert last.cpu_ms - first.cpu_ms < 100  # the server took some 20 times 50
    assert grown < 20  # some 4; each thread of the server that makes a trace keeps it: 80 if they did in turn


def test_as_many_operations_are_kept_as_the_user_asks_for(spool: ShimSpool) -> None:
    with worker(spool, "work(100)\n" + READY + "time.sleep(600)\n", TORCH_FR_BUFFER_SIZE="20"):
        assert rows(answered(spool)) == [(number, DONE) for number in range(81, 101)]


def test_one_that_waits_at_a_store_says_so(spool: ShimSpool) -> None:
    text = """
import datetime, threading
store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=datetime.timedelta(seconds=60), wait_for_workers=False)
threading.Thread(target=lambda: store.get("never"), daemon=True).start()
time.sleep(0.5)
"""
    with worker(spool, text + READY + "time.sleep(600)\n"):
        (trace,) = ask(spool)
    assert (trace.why, trace.groups) == ("", ())  # it has called no operation yet
    assert any(name.startswith("TCPStore") for name in trace.waits)


def test_a_stopped_one_is_named_and_answers_when_it_goes_on(spool: ShimSpool) -> None:
    with worker(spool, "work(3)\n" + READY + "time.sleep(600)\n") as (_, pid):
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: stacks.kernel_state(pid) == "T", "the stop")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(traces, "ask", is_asked)
            (stopped,) = ask(spool)
        os.kill(pid, signal.SIGCONT)
        (going,) = ask(spool)
    assert (stopped.state, stopped.why, stopped.groups) == ("T", "it is stopped (SIGSTOP)", ())
    assert rows(going) == [(1, DONE), (2, DONE), (3, DONE)]


def test_one_that_stops_while_it_is_asked_is_given_up_in_time(
    spool: ShimSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "kernel_state", lambda _pid: "S")
    monkeypatch.setattr(traces, "TIMEOUT", 0.5)
    with worker(spool, READY + "time.sleep(600)\n") as (_, pid):
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: stacks.kernel_state(pid) == "T", "the stop")
        found = [ask(spool)[0].why for _ in range(8)]  # more than wait in its backlog
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: ask(spool)[0].why == "", "its answer")
    assert {*found} == {"it does not answer"}


def test_one_whose_child_has_its_sockets_answers(spool: ShimSpool) -> None:
    text = "work(5)\nchild = os.fork()\nif not child: time.sleep(600)\n"
    with worker(spool, text + READY + "time.sleep(600)\n"):
        (trace,) = ask(spool)
    assert len(rows(trace)) == 5
    assert len(trace.children) == 1


def test_one_that_left_its_socket_to_a_child_and_ended_delays_nobody(
    spool: ShimSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "child = os.fork()\nif not child: time.sleep(600)\n" + READY + "time.sleep(0.5)\nos._exit(0)\n"
    with worker(spool, text) as (_, pid):
        wait_for(lambda: not alive(pid), "its end")
        event = [one for one in Spool(str(spool.folder)).events() if one.kind == "worker_started"]
        monkeypatch.setattr(traces, "live_workers", lambda _events: event)  # as before its end is recorded
        monkeypatch.setattr(traces, "ask", is_asked)
        (trace,) = ask(spool)
    assert (trace.why, trace.groups) == ("it has just ended", ())


def test_what_differs_between_the_workers_of_a_host_is_kept(spool: ShimSpool) -> None:
    # Both are alone in their groups, of one name: what differs between the workers of a host is kept.
    second = "dist.barrier()\n"
    with (
        worker(spool, "work(100)\n" + READY + HOLDS),
        worker(spool, second + "work(99)\n" + READY + HOLDS, local_rank=1),
    ):
        first, other = ask(spool)
    assert [number for number, _ in rows(first)] == [1, *range(101 - LAST_ENTRIES, 101)]
    assert [number for number, _ in rows(other)] == [1, *range(101 - LAST_ENTRIES, 101)]
    assert [trace.groups[0].operations[0].name for trace in (first, other)] == ["all_reduce", "barrier"]


def test_one_without_torch_says_so(spool: ShimSpool) -> None:
    (spool.cwd / "train.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    with spool.popen("-u", "train.py") as process:
        pid = int(spool.event("worker_started")["pid"])
        try:
            (trace,) = ask(spool)
        finally:
            process.kill()
            os.killpg(pid, signal.SIGKILL)
    assert trace.why.startswith("it has not loaded torch.distributed")


def test_one_whose_script_has_closed_the_socket_is_left_alone(spool: ShimSpool) -> None:
    # Asked, it would abort: a thread of its server finds its socket gone.
    (spool.cwd / "train.py").write_text(
        "import os, time, torch.distributed\nos.closerange(3, 1024)\n" + READY + "time.sleep(600)\n"
    )
    with spool.popen("-u", "train.py") as process:
        pid = int(spool.event("worker_started")["pid"])
        try:
            wait_for((spool.folder / "logs" / "0.0.out").read_text, "the script")
            found = [ask(spool)[0].why for _ in range(3)]
            time.sleep(0.5)
            assert alive(pid)
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    assert {*found} == {"its script has closed the socket of its server"}
