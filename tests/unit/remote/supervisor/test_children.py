"""What a supervisor records of processes that it reaps, and what it sends its agent."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.processes import terminate
from clusterddp.remote.rendezvous.participants import Participants
from clusterddp.remote.shared.verdict.failures import OWN, worker_failures
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.spool.worker_traces import evidence
from clusterddp.remote.supervisor import children
from clusterddp.remote.supervisor.children import Children
from clusterddp.remote.system import procfs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

AGENT, WORKER = 100, 200


@pytest.mark.parametrize("order", [(AGENT, WORKER), (WORKER, AGENT)], ids=["agent first", "worker first"])
def test_a_worker_whose_shim_was_killed_ended_before_the_agent_that_noticed(
    order: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host both are reaped at once, in any order, and written down later."""
    (tmp_path / "logs").mkdir()
    spool = Spool(str(tmp_path))
    later: list[Callable[[], object]] = []
    spool.event("worker_started", pid=WORKER, start=0, local_rank=1, rank=3)
    own: Any = Children.__new__(Children)
    own.spool, own.agent, own.store, own.fork_server, own.forks = spool, AGENT, None, None, {}
    own.event, own.do, own.agent_bytes = spool.event, later.append, lambda: 0
    statuses = {AGENT: 1 << 8, WORKER: int(signal.SIGKILL)}
    monkeypatch.setattr(children, "reap", lambda: [(pid, statuses[pid]) for pid in order])
    monkeypatch.setattr(procfs, "exists", lambda _pid: False)
    monkeypatch.setattr(terminate, "kill_group", lambda _pid: None)
    own.reap()
    for work in later:
        work()
    (failure,) = worker_failures(evidence(spool))
    assert (failure.rank, failure.kind) == (3, OWN)
    assert failure.text == "its parent process (clusterddp's) was killed by SIGKILL"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_store_that_ends_by_sigterm_is_told_from_one_that_dies(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = Children.__new__(Children)
    own.agent, own.store, own.store_restarted, own.store_terminated = AGENT, WORKER, False, False
    own.fork_server, own.forks, own.owns_store = None, {}, True
    own.event, own.agent_bytes, own.store_output = lambda *_, **__: None, lambda: 0, lambda: "serving on port 29400"
    monkeypatch.setattr(children, "reap", lambda: [(WORKER, int(number))])
    own.reap()
    assert (own.store_died, own.store_terminated) == (True, number == signal.SIGTERM)


def test_a_worker_whose_pid_an_earlier_one_had_ends_on_record_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(str(tmp_path))
    spool.event("worker_started", pid=WORKER, start=0, local_rank=1, rank=3)
    spool.event("worker_exited", pid=WORKER, start=0, local_rank=1, rank=3, exit_code=1)
    spool.event("worker_started", pid=WORKER, start=1, local_rank=0, rank=2)
    own: Any = Children.__new__(Children)
    own.spool = spool
    monkeypatch.setattr(procfs, "exists", lambda _pid: True)
    own.record_orphan(WORKER, int(signal.SIGKILL), 0, 1)
    own.record_orphan(WORKER, int(signal.SIGKILL), 0, 2)  # another process that had it later
    (failure,) = worker_failures(evidence(spool))
    assert (failure.rank, failure.start, failure.exited_ns) == (2, 1, 1)


def test_a_shorter_lease_reaches_the_agent_at_once_and_a_longer_one_soon() -> None:
    ours, agents = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, agents:
        agents.setblocking(False)
        children = Children.__new__(Children)  # what makes its processes is not needed
        children.agent_socket, children._sent, children._sent_at = ours, None, 0.0
        received = []
        for until in (100.0, 101.0, 98.5):
            children.inform_agent(Participants(term_at=until, kill_at=until + 1.0))
            try:
                received.append(Participants.unpack(agents.recv(1 << 12)).kill_at)
            except BlockingIOError:
                received.append(0.0)
    assert received == [101.0, 0.0, 99.5]
