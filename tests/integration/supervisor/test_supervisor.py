"""A node's life on its host: start, orders, ends, and what is left; with plain programs in torchrun's place."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import HelperError
from clusterddp.hosts.client import Host
from clusterddp.launch.prepare import new_run_id
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.spool.layout import Spool
from tests.integration.cli import WAIT
from tests.integration.real_helper import Shell, alive, entry, opened, wait_for
from tests.integration.runs_started import (
    Started,
    agent_plan,
    gone,
    kill_supervisor,
    modes,
    running,
    start,
    with_constant,
)
from tests.unit.plan_made import PLAN, made_spool

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

WAITS = """
    import os, threading
    print("agent", os.getpid())
    threading.Event().wait(600)
"""

UNTIL_GO = f"""{WAIT}
print("agent", os.getpid())
wait_for("go")
"""
# Everything that does not want to end: deaf to SIGTERM, in sessions of their own, forked twice, without our markers.
STUBBORN = """
    import os, signal, subprocess, sys, threading
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("agent", os.getpid())
    deaf = "import signal, threading; signal.signal(15, signal.SIG_IGN); threading.Event().wait(600)"
    waits = [sys.executable, "-c", deaf]
    print("session", subprocess.Popen(waits, start_new_session=True).pid)
    bare = subprocess.Popen(["/usr/bin/env", "-i", *waits], start_new_session=True)
    print("bare", bare.pid)
    if not os.fork():
        os.setsid()
        if not os.fork():
            print("orphan", os.getpid())
            threading.Event().wait(600)
        os._exit(0)
    threading.Event().wait(600)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[Host]:
    with opened(folder / "state") as shared:
        yield shared


class TestStart:
    def test_asked_twice_one_supervisor_answers(self, host: Host, folder: Path) -> None:
        plan = agent_plan(host, folder, WAITS)
        with opened(folder / "state") as other, ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda at: start(at, plan), (host, other))
            third = start(host, plan)
        try:
            assert sorted([first.answer["started"], second.answer["started"]]) == [False, True]
            assert third.answer == {**first.answer, "started": False}
            assert first.commit()["alive"]
            assert first.word("agent")
            wait_for(
                lambda: first.events("agent_started"), "the event of the agent's start"
            )  # it may speak before that
            assert len(first.events("supervisor_started")) == len(first.events("agent_started")) == 1
        finally:
            first.stop()
        for attempt in (1, 2):
            with pytest.raises(HelperError, match=f"run {first.run} was stopped; start a new one"):
                start(host, {**plan, "attempt": attempt})

    def test_a_start_that_is_never_committed_ends_by_itself(self, folder: Path) -> None:
        hasty = with_constant("shared/supervisor/start_records", "START_TIMEOUT + 30.0", "0.5")
        with Host.open(entry(folder / "state"), Shell("/bin/sh"), hasty) as host:
            left = start(host, agent_plan(host, folder, WAITS))
            record = left.ended()
        assert (record["state"], record["ours"]) == ("stopped", True)
        assert record["reason"] == "the operator was lost before every node had started"
        assert not left.events("agent_started")

    def test_it_may_have_a_connection_to_every_node_of_a_large_run_and_its_agent_has_the_users_limit(
        self, host: Host, folder: Path
    ) -> None:
        tells = """
            import resource, threading
            print("agent", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            threading.Event().wait(600)
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with running(host, folder, tells) as node:
            assert node.word("agent") == str(soft)
            assert resource.prlimit(node.supervisor, resource.RLIMIT_NOFILE) == (hard, hard)

    def test_it_outlives_the_connection(self, folder: Path) -> None:
        with opened(folder / "state") as short:
            started = start(short, agent_plan(short, folder, WAITS))
            started.commit()
            helper = short.hello.pid
        wait_for(lambda: gone(helper), "the helper's end")
        assert alive(started.supervisor)
        assert alive(started.pids("agent")[0])
        with opened(folder / "state") as started.host:
            assert started.status().state == "starting"  # no worker has started: this agent has none
            started.stop()

    @pytest.mark.parametrize("store", [True, False])
    def test_an_interpreter_that_is_not_there(self, host: Host, folder: Path, store: bool) -> None:  # noqa: FBT001
        plan = agent_plan(host, folder, WAITS, python="/opt/no/python")
        if store:
            plan["store"] = {"address": "127.0.0.1"}
            plan["argv"] = ["--rdzv-endpoint", "127.0.0.1:{port}"]
        started = start(host, plan, {"TOKEN": "hush"})
        assert started.commit()["alive"]
        record = started.ended()
        assert (record["state"], record["exit_code"]) == ("failed", 125)
        assert record["reason"] == f"cannot start /opt/no/python in {plan['cwd']}: No such file or directory"
        assert "Traceback" not in Path(started.spool.path("supervisor.log")).read_text()
        assert not Path(started.spool.path("secrets.json")).exists()
        assert started.commit() == {"alive": False, "exit": record}
        assert started.stop()["proved_empty"]

    def test_a_working_folder_that_is_not_there(self, host: Host, folder: Path) -> None:
        with pytest.raises(HelperError, match="here: the working folder /no/where is not there"):
            start(host, agent_plan(host, folder, WAITS, cwd="/no/where"))

    def test_a_stop_between_the_spool_and_the_supervisor_holds(self, folder: Path) -> None:
        spool = Spool.of(str(folder / "state"), new_run_id(), 1, "0-here")
        assert made_spool(spool, PLAN._replace(run=spool.run, host="here"))
        spool.write_stop_order("by a test", 0.0)
        argv = [sys.executable, "-I", "-S", spool.path("remote.pyz"), "supervisor", spool.folder, "-", "-"]
        done = subprocess.run(argv, input="{}", capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout == "the run was stopped meanwhile\n"
        record = spool.exit_record()
        assert record
        assert record.state == "stopped"
        assert spool.events()[0].kind == "ended"

    def test_a_program_starts_as_at_a_login(self, folder: Path) -> None:
        """Under a shell with a umask of its own that ignores signals, as nohup and background jobs do."""
        login = folder / "login"
        login.write_text("#!/bin/sh\numask 027\ntrap '' INT HUP PIPE TERM QUIT\neval \"$2\"\n")
        login.chmod(0o700)
        program = """
            import os, signal
            print("umask", oct(os.umask(0)))
            names = ("SIGHUP", "SIGTERM", "SIGINT")
            print("ignored", [n for n in names if signal.getsignal(getattr(signal, n)) == signal.SIG_IGN])
            print("blocked", sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
            print("stdin", repr(os.read(0, 9)))
            print("group", os.getpgrp() == os.getpid())
            print("host", os.environ["CLUSTERDDP_HOST"], "PET_NNODES" in os.environ, "RANK" in os.environ)
            print("open", sorted(int(n) for n in os.listdir("/proc/self/fd"))[3:-1])
        """
        stale = {"PET_NNODES": "7", "RANK": "5", "HOME": os.environ["HOME"], "PATH": os.environ["PATH"]}
        with (
            Host.open(entry(folder / "state"), Shell(str(login), env=stale)) as host,
            running(host, folder, program) as node,
        ):
            assert node.ended()["state"] == "succeeded"
        assert node.said().splitlines() == [
            "umask 0o27",
            "ignored []",
            "blocked []",
            "stdin b''",
            "group True",
            "host here False False",
            "open []",
        ]
        wrong = {path: oct(mode) for path, mode in modes(folder / "state" / "runs" / node.run).items() if mode & 0o077}
        assert not wrong


class TestEnd:
    @pytest.mark.parametrize(
        ("program", "state", "code"),
        [
            ("print('hello')", "succeeded", 0),
            ("raise SystemExit(3)", "failed", 3),
            ("import os; os.kill(os.getpid(), 9)", "failed", 137),
        ],
    )
    def test_the_agents_end_is_the_record(self, host: Host, folder: Path, program: str, state: str, code: int) -> None:
        with running(host, folder, program, {"TOKEN": "hush"}) as node:
            record = node.ended()
            assert (record["state"], record["exit_code"], record["agent_exit"]) == (state, code, code)
            assert record["survivors"] == []
            assert [event.kind for event in node.spool.events()] == [
                "supervisor_started", "agent_started", "agent_exited", "ended",
            ]  # fmt: skip
            told = node.status()
        assert (told.state, told.exit and to_fields(told.exit)) == (state, record)
        assert not Path(node.spool.path("secrets.json")).exists()
        assert not Path(node.spool.path("control.key")).exists()
        paths = [path for path in Path(node.spool.folder).rglob("*") if path.is_file()]
        assert not [path for path in paths if b"hush" in path.read_bytes()]
        assert node.ended() == record  # the stop afterwards changed nothing

    def test_what_a_script_leaves_running_is_ended(self, host: Host, folder: Path) -> None:
        program = """
            import subprocess
            print("left", subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
        """
        with running(host, folder, program) as node:
            assert node.ended()["state"] == "succeeded"
            assert gone(*node.pids("left"))

    def test_an_order_that_comes_with_the_agents_end_changes_nothing(self, host: Host, folder: Path) -> None:
        with running(host, folder, UNTIL_GO) as node:
            (agent,) = node.pids("agent")
            os.kill(node.supervisor, signal.SIGSTOP)
            (folder / "work" / "go").touch()
            wait_for(lambda: gone(agent), "the agent's end")
            node.spool.write_stop_order("too late", 0.0)
            os.kill(node.supervisor, signal.SIGCONT)
            assert node.ended()["state"] == "succeeded"

    def test_the_time_limit(self, host: Host, folder: Path) -> None:
        with running(host, folder, WAITS, time_limit=0.3) as node:
            record = node.ended()
            assert (record["state"], record["reason"]) == ("stopped", "the time limit was reached")
            assert gone(*node.pids("agent"))

    def test_a_supervisor_told_to_end(self, host: Host, folder: Path) -> None:
        with running(host, folder, WAITS) as node:
            node.word("agent")
            os.kill(node.supervisor, signal.SIGTERM)
            record = node.ended()
        assert (record["state"], record["ours"]) == ("stopped", True)
        assert "SIGTERM" in record["reason"]


class TestStop:
    def test_deaf_and_hidden_processes_are_ended_after_the_grace(self, host: Host, folder: Path) -> None:
        with running(host, folder, STUBBORN, {"TOKEN": "hush"}) as node:
            pids = node.pids("agent", "session", "bare", "orphan")
            assert set(pids) <= set(node.status().pids)
            proof = node.stop(grace=0.5)
            assert gone(*pids, node.supervisor)
        assert proof["proved_empty"]
        (told,) = proof["nodes"]
        assert (told["survivors"], told["found"] >= 5) == ([], True)
        record = told["exit"]
        assert (record["state"], record["exit_code"], record["reason"]) == ("stopped", 143, "by a test")
        stopping, ended = node.event("stopping")["time"], node.event("agent_exited")["time"]
        assert ended - stopping >= 0.5e9
        assert not Path(node.spool.path("secrets.json")).exists()

    def test_the_grace_is_the_agents_to_use_and_a_shorter_one_cuts_it(self, host: Host, folder: Path) -> None:
        program = """
            import os, signal, threading
            signal.signal(signal.SIGTERM, lambda *_: print("heard", 1))
            print("agent", os.getpid())
            while True: threading.Event().wait(600)
        """
        with running(host, folder, program) as node, ThreadPoolExecutor(1) as pool:
            agent = node.pids("agent")[0]
            patient = pool.submit(node.stop, 300.0, "the first")
            node.word("heard")
            assert alive(agent)
            with opened(folder / "state") as other:
                proof = Started(host=other, run=node.run, spool=node.spool).stop(0.0, "the second")
            assert patient.result(30)["proved_empty"]
        assert proof["proved_empty"]
        assert node.ended()["reason"] == "the first"
        assert len(node.events("stopping")) == 1

    def test_another_run_on_the_machine_is_left_alone(self, host: Host, folder: Path) -> None:
        with running(host, folder, STUBBORN) as one, running(host, folder, STUBBORN) as other:
            theirs = other.pids("agent", "session", "bare", "orphan")
            assert one.stop()["proved_empty"]
            assert all(alive(pid) for pid in theirs)
            assert other.status().state == "starting"
            assert other.spool.exit_record() is None

    def test_again_and_of_a_run_that_is_not_here(self, host: Host, folder: Path) -> None:
        with running(host, folder, WAITS) as node:
            node.word("agent")
            first, again = node.stop(), node.stop()
        assert again["proved_empty"]
        assert again["nodes"][0]["exit"] == first["nodes"][0]["exit"]
        node.run = "nothere"
        with pytest.raises(HelperError, match="here: run nothere is not known here"):
            node.stop()


class TestLost:
    def test_a_killed_supervisor_takes_the_agent_along_and_stop_finds_the_rest(self, host: Host, folder: Path) -> None:
        with running(host, folder, STUBBORN, {"TOKEN": "hush"}) as node:
            agent, *rest = node.pids("agent", "session", "bare", "orphan")
            kill_supervisor(node)
            wait_for(lambda: gone(agent), "the agent's end")
            wait_for(lambda: not node.spool.alive(), "the lock")
            told = node.status()
            assert (told.state, told.exit) == ("lost", None)
            assert set(rest) <= set(told.pids)
            assert not Path(node.spool.path("secrets.json")).exists()
            proof = node.stop()
            assert proof["proved_empty"]
            assert gone(*rest)
            record = proof["nodes"][0]["exit"]
            assert (record["state"], record["exit_code"]) == ("lost", 125)
            assert record["reason"] == "its supervisor was killed"
            assert node.status().state == "lost"  # not by us

    def test_a_start_cut_short_breaks_no_listing(self, host: Host, folder: Path) -> None:
        run = new_run_id()
        half = Spool.of(str(folder / "state"), run, 1, "0-here")
        Path(half.folder).mkdir(parents=True)
        assert host.call("runs", {"run": run, "hosts": ["here"]}) == []
        Path(half.path("plan.json")).write_text(json.dumps(agent_plan(host, folder, WAITS, run=run)))
        (told,) = host.call("runs", {"run": run, "hosts": ["here"]})
        assert told["state"] == "starting"
        started = Started(host=host, run=run, spool=half)
        assert started.stop()["proved_empty"]
        assert started.status().state == "stopped"
