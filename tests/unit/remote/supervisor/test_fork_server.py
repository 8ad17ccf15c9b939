"""What a supervisor makes of what its fork server says, or does not say."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from clusterddp.hosts.zipapp import bundle
from clusterddp.remote.spool.layout import Spool, create_spool
from clusterddp.remote.supervisor import fork_server
from clusterddp.remote.supervisor.fork_server import ForkServer, server_argv
from tests.unit.plan_made import PLAN

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
    assert create_spool(made, PLAN, bundle().code)
    return made


@pytest.fixture
def ends(spool: Spool, process: subprocess.Popen[bytes]) -> Iterator[tuple[ForkServer, socket.socket]]:
    """The supervisor's view, and the server's end of the socket."""
    ours, its = socket.socketpair()
    with ours, its:
        yield ForkServer(process.pid, ours, spool.event), its


def reasons(spool: Spool) -> list[str]:
    return [event["reason"] for event in spool.events() if event["event"] == "not_forked"]


def test_the_agent_is_awaited_and_gets_its_order(ends: tuple[ForkServer, socket.socket]) -> None:
    server, its = ends
    assert server.pending
    its.sendall(b"age")
    assert server.pending
    its.sendall(b"nt 4711\n")
    assert not server.pending
    assert server.order(["python", "-m", "m"], {"A": "ü"}, "/log", NEVER) == 4711
    order = json.loads(its.recv(4096))
    assert order == {"argv": ["python", "-m", "m"], "env": {"A": "ü"}, "log": "/log", "until": None}
    assert server.order([], {}, "", NEVER) is None


@pytest.mark.parametrize("said", [b"refused no room\n", b"no agent: no room\n"])
def test_without_an_agent_it_is_started_plainly_and_why_is_on_record(
    ends: tuple[ForkServer, socket.socket], spool: Spool, said: bytes
) -> None:
    server, its = ends
    its.sendall(said)
    assert not server.pending
    assert server.order([], {}, "", NEVER) is None
    assert [reason.rpartition(": ")[2] for reason in reasons(spool)] == ["no room"]


def test_a_server_that_is_gone_is_awaited_no_longer_and_wakes_no_loop(ends: tuple[ForkServer, socket.socket]) -> None:
    server, its = ends
    with selectors.DefaultSelector() as selector:
        server.wake(selector)
        its.close()
        for key, _ in selector.select(5):
            key.data()
        assert not selector.get_map()
    assert not server.pending


def test_a_server_that_takes_too_long_is_ended(
    ends: tuple[ForkServer, socket.socket],
    spool: Spool,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, _ = ends
    monkeypatch.setattr(fork_server, "boot_clock", lambda: server.until + 1)
    assert not server.pending
    assert process.wait() == -9
    assert reasons(spool) == ["it did not import torch within 60 s"]


def test_once_it_has_ended_its_pid_is_nobodys(ends: tuple[ForkServer, socket.socket]) -> None:
    server, its = ends
    its.sendall(b"agent %d\n" % os.getpid())
    assert not server.pending
    server.ended(server.pid)
    server.ended(os.getpid())
    server.end()
    assert (server.pid, server.agent) == (0, None)


def test_its_command_line_runs_nothing_where_the_hook_is_passed_over() -> None:
    assert server_argv(PLAN._replace(worker_argv=("-u", "train.py")))[1:] == ["-c", "", "-u", "train.py"]
