"""What a supervisor makes of what its fork server says, or does not say."""

from __future__ import annotations

import json
import selectors
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.run.event_schema import of_kind
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.supervisor import fork_server_process
from clusterddp.remote.supervisor.fork_server_process import Fork, ForkServer, server_argv
from tests.unit.plan_made import PLAN, made_spool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEVER = float("inf")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Something that lives."""
    with subprocess.Popen(["sleep", "600"]) as living:
        yield living
        living.kill()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(str(tmp_path / "runs" / "run1" / "1" / "0-h"))
    assert made_spool(made)
    return made


@pytest.fixture
def server(spool: Spool, process: subprocess.Popen[bytes]) -> Iterator[tuple[ForkServer, socket.socket]]:
    """The supervisor's view, and the server's end of the socket."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        yield ForkServer(process.pid, ours, spool.event), its


Ends = tuple[ForkServer, socket.socket, Fork, socket.socket]


@pytest.fixture
def ends(server: tuple[ForkServer, socket.socket]) -> Iterator[Ends]:
    """The same, an agent that was asked for, and that one's end of its socket."""
    view, its = server
    fork = view.ask("agent", "/spool")
    assert fork
    request, handles, _, _ = socket.recv_fds(its, 4096, 2)
    assert json.loads(request) == {"role": "agent", "spool": "/spool"}
    with socket.socket(fileno=handles[0]) as agent:
        yield view, its, fork, agent


def reasons(spool: Spool) -> list[str]:
    return [event.reason for event in of_kind(spool.events(), "not_forked")]


def test_the_agent_is_awaited_and_gets_its_order(ends: Ends) -> None:
    _, _, fork, agent = ends
    assert fork.pending
    agent.sendall(b"47")
    assert fork.pending
    agent.sendall(b"11\n")
    assert not fork.pending
    assert fork.order(["python", "-m", "m"], {"A": "ü"}, "/log", NEVER) == 4711
    order = json.loads(agent.recv(4096))
    assert order == {"argv": ["python", "-m", "m"], "env": {"A": "ü"}, "log": "/log", "until": None}


def test_without_an_agent_it_is_started_plainly_and_why_is_on_record(ends: Ends, spool: Spool) -> None:
    _, _, fork, agent = ends
    agent.sendall(b"no agent: no room\n")
    assert not fork.pending
    assert fork.order([], {}, "", NEVER) is None
    assert reasons(spool) == ["no agent: no room"]


def test_a_server_that_refuses_and_ends_is_awaited_no_longer_and_wakes_no_loop(
    server: tuple[ForkServer, socket.socket], spool: Spool
) -> None:
    view, its = server
    with selectors.DefaultSelector() as selector:
        view.register(selector)
        fork = view.ask("store", "/spool")
        its.sendall(b"refused no room\n")
        its.close()
        while selector.get_map():
            for key, _ in selector.select(5):
                key.data()
    assert fork
    assert not fork.pending
    assert fork.order([], {}, "", NEVER) is None
    assert reasons(spool) == ["no room"]
    assert view.ask("agent", "/spool") is None


def test_what_it_imports_besides_torch_is_on_record(server: tuple[ForkServer, socket.socket], spool: Spool) -> None:
    view, its = server
    with selectors.DefaultSelector() as selector:
        view.register(selector)
        for line in (b"preloaded good\n", b"left ranked: it reads RANK\n", b"ready\n"):
            its.sendall(line)
        while not (told := spool.events()) or told[-1].kind != "fork_server_ready":
            for key, _ in selector.select(5):
                key.data()
    assert [(one.kind, one.packages or one.reason) for one in told] == [
        ("preloaded", "good"), ("not_preloaded", "ranked: it reads RANK"), ("fork_server_ready", "")
    ]  # fmt: skip


def test_a_server_that_takes_too_long_is_awaited_no_longer(
    ends: Ends, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = ends[2]
    monkeypatch.setattr(fork_server_process, "boot_clock", lambda: fork.until + 1)
    assert not fork.pending
    assert reasons(spool) == ["the fork server did not import torch in time"]


def test_once_they_have_ended_their_pids_are_nobodys(ends: Ends, process: subprocess.Popen[bytes]) -> None:
    view, _, fork, agent = ends
    agent.sendall(b"%d\n" % process.pid)
    assert not fork.pending
    fork.note_exit(process.pid)
    fork.end()
    view.note_exit(view.pid)
    view.end()
    assert (view.pid, fork.pid, process.poll()) == (0, None, None)
    assert view.ask("agent", "/spool") is None


def test_its_command_line_runs_nothing_where_the_hook_is_passed_over() -> None:
    assert server_argv(PLAN._replace(worker_argv=("-u", "train.py")))[1:] == ["-c", "", "-u", "train.py"]


def test_a_server_is_ended_by_sigterm_and_is_a_process_as_any_other_from_then_on(
    server: tuple[ForkServer, socket.socket], process: subprocess.Popen[bytes]
) -> None:
    view, _ = server
    view.end()
    assert (process.wait(), view.pid) == (-signal.SIGTERM, 0)
