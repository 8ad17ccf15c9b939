"""What the shim does: files, events, signals, the worker's end and its own."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.processes.stacks import STACK_SIGNAL
from clusterddp.remote.system import procfs
from tests.integration.real_helper import alive
from tests.integration.shim_spool import (
    ShimSpool,
    environment,
    make_spool,
    run_plain,
    shim_environment,
    wait_for,
)
from tests.pythons import interpreter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Starts a child in its own group, and reports every signal that either gets.
LISTENER = """
import os, signal, sys, threading
def note(who):
    return lambda number, frame: os.write(1, ("%s %d\\n" % (who, number)).encode())
for number in (10, 12, 15, 2, 1, 3, 20, 18):
    signal.signal(number, note("worker"))
child = os.fork()
for number in (10, 12, 15, 2, 1, 3, 20, 18):
    signal.signal(number, note("worker" if child else "child"))
if not child:
    os.write(1, ("ready %d\\n" % os.getpid()).encode())  # the parent was before the fork
while True:
    threading.Event().wait(60)
"""


@pytest.fixture
def spool(tmp_path: Path) -> ShimSpool:
    """A spool whose shim and workers run on the tests' own Python."""
    return make_spool(tmp_path)


def script(spool: ShimSpool, text: str) -> str:
    (spool.cwd / "script.py").write_text(text)
    return "script.py"


def lines(spool: ShimSpool) -> list[str]:
    return (spool.folder / "logs" / "0.0.out").read_text().splitlines()


def started(spool: ShimSpool, text: str = LISTENER, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """The shim of a script that has said that it is ready."""
    process = spool.popen("-u", script(spool, text), env=env)
    wait_for(lambda: spool.events("worker_started") and any("ready" in line for line in lines(spool)), "the script")
    return process


def end(process: subprocess.Popen[bytes], spool: ShimSpool) -> None:
    os.killpg(spool.event("worker_started")["pid"], signal.SIGKILL)
    process.wait(10)


def test_every_start_of_a_local_rank_has_files_of_its_own(spool: ShimSpool) -> None:
    for number in range(3):
        ended = spool.run("-u", script(spool, f"import sys; print({number}); print('e', file=sys.stderr)"))
        assert (ended.out, ended.err) == (b"%d\n" % number, b"e\n")
    with spool.popen("-u", "script.py", env=environment(LOCAL_RANK="1")) as other:
        assert other.wait(10) == 0
    names = sorted(path.name for path in (spool.folder / "logs").iterdir())
    starts = ("0.0", "0.1", "1.0", "2.0")
    assert names == [f"{start}.{kind}" for start in starts for kind in ("err", "order.idx", "out")]
    assert [event["start"] for event in spool.events("worker_started")] == [0, 1, 2, 0]
    assert {stat.S_IMODE((spool.folder / "logs" / name).stat().st_mode) for name in names} == {0o600}


def test_workers_started_at_once_never_share_a_file(spool: ShimSpool) -> None:
    script(spool, "print('one')")
    for process in [spool.popen("-u", "script.py") for _ in range(5)]:
        assert process.wait(30) == 0
    assert sorted(event["start"] for event in spool.events("worker_exited")) == [0, 1, 2, 3, 4]
    assert all((spool.folder / "logs" / f"{number}.0.out").read_text() == "one\n" for number in range(5))


def test_the_start_is_on_record_before_the_first_line(spool: ShimSpool) -> None:
    spool.run("-u", script(spool, f"print(open({str(spool.folder / 'events.jsonl')!r}).read(), end='')"))
    (line,) = lines(spool)
    event = json.loads(line)
    assert event == {
        "event": "worker_started", "time": event["time"], "start": 0, "local_rank": 0, "pid": event["pid"], "rank": 3,
        "forked": False,
        "world_size": 4, "local_world_size": None, "group_rank": 1, "group_world_size": None, "restart_count": 0,
        "max_restarts": None, "master_addr": "10.0.0.1", "master_port": 29511, "round": 3,
        "agent_bytes": None,
    }  # fmt: skip


def test_neither_environment_nor_secrets_are_written_anywhere(spool: ShimSpool) -> None:
    (spool.folder / "secrets.json").write_text(json.dumps({"TOKEN": "s3cret-value"}))
    spool.run("-u", script(spool, "import os; assert os.environ['TOKEN'] == 's3cret-value'; raise SystemExit(5)"),
              env=environment(OTHER="an0ther"))  # fmt: skip
    assert spool.event("worker_exited")["exit_code"] == 5
    (spool.folder / "secrets.json").unlink()
    for path in spool.folder.rglob("*"):
        assert not path.is_file() or not {b"s3cret-value", b"an0ther"} & set(path.read_bytes().split(b'"'))


@pytest.mark.parametrize(
    ("text", "status", "code", "number"),
    [
        ("raise SystemExit(0)", 0, 0, None),
        ("raise SystemExit(7)", 7 << 8, 7, None),
        ("raise SystemExit(255)", 255 << 8, 255, None),
        ("import os; os.kill(os.getpid(), 9)", 9, 137, 9),
        ("import os; os.kill(os.getpid(), 15)", 15, 143, 15),
        ("import os; os.kill(os.getpid(), 40)", 40, 168, 40),
    ],
)
def test_the_workers_end_is_recorded_and_is_the_shims(
    spool: ShimSpool, text: str, status: int, code: int, number: int | None
) -> None:
    ended = spool.run("-u", script(spool, text))
    event = spool.event("worker_exited")
    assert (event["status"], event["exit_code"], event["signal"]) == (status, code, number)
    assert ended.returncode == (-number if number else code)
    assert event["pid"] == spool.event("worker_started")["pid"]
    assert event["rank"] == 3
    assert event["maxrss_kib"] > 1000


def test_a_crash_leaves_no_core_file_of_the_shim(spool: ShimSpool) -> None:
    text = "import resource as r, os; r.setrlimit(r.RLIMIT_CORE, (0, r.getrlimit(r.RLIMIT_CORE)[1])); os.abort()"
    ended = spool.run("-u", script(spool, text))
    assert ended.returncode == -signal.SIGABRT
    assert os.WCOREDUMP(spool.event("worker_exited")["status"]) is False
    assert [path.name for path in spool.cwd.iterdir()] == ["script.py"]


@pytest.mark.parametrize("number", [15, 2, 1, 3, 20, 18])
def test_a_signal_to_the_shim_reaches_the_workers_whole_group(spool: ShimSpool, number: int) -> None:
    process = started(spool)
    os.killpg(process.pid, number)
    wait_for(lambda: {f"worker {number}", f"child {number}"} <= set(lines(spool)), "both to hear")
    assert process.poll() is None
    end(process, spool)


@pytest.mark.parametrize("number", [10, 12])
def test_a_checkpoint_signal_reaches_the_worker_alone(spool: ShimSpool, number: int) -> None:
    process = started(spool)
    process.send_signal(number)
    wait_for(lambda: f"worker {number}" in lines(spool), "the worker to hear")
    process.send_signal(signal.SIGTERM)  # heard by both; what the child should not have heard was sent before
    wait_for(lambda: "child 15" in lines(spool), "the child to hear")
    assert f"child {number}" not in lines(spool)
    end(process, spool)


def test_a_term_that_comes_before_the_worker_exists_is_not_lost(spool: ShimSpool) -> None:
    def hold() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # it stays pending until the shim takes it

    with spool.popen("-u", script(spool, "import threading; threading.Event().wait(600)"), preexec_fn=hold) as process:
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM
    assert spool.event("worker_exited")["signal"] == signal.SIGTERM


def test_a_worker_that_goes_on_after_its_term_is_killed_when_the_grace_is_over(spool: ShimSpool) -> None:
    process = started(spool, env=environment(PET_SHUTDOWN_TIMEOUT="1"))
    child = int(next(line for line in lines(spool) if "ready" in line).split()[1])
    process.terminate()
    assert process.wait(20) == -signal.SIGKILL  # torchrun itself waits for 30 s before a restart
    wait_for(lambda: not alive(child), "its child's end")
    ended = spool.event("worker_exited")
    assert (ended["signal"], [number for number, _ in ended["signals_received"]]) == (
        signal.SIGKILL,
        [signal.SIGTERM, signal.SIGKILL],
    )


def test_a_worker_whose_peers_host_is_lost_hangs_no_longer_than_a_moment(spool: ShimSpool) -> None:
    process = started(spool, env=environment(PET_SHUTDOWN_TIMEOUT="600"))
    (spool.folder / "peers.json").write_text('{"excluded": ["gpu07"]}')
    process.terminate()
    assert process.wait(20) == -signal.SIGKILL


def test_dispositions_are_those_of_a_login_whatever_the_agent_ignores(spool: ShimSpool) -> None:
    text = "print([l.split()[1] for l in open('/proc/self/status') if l.startswith(('SigIgn', 'SigBlk'))])"
    plain = run_plain(spool, sys.executable, "-u", script(spool, text))

    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])

    ended = spool.run("-u", "script.py", preexec_fn=ignore)
    assert (ended.returncode, ended.out) == (0, plain.out)
    assert spool.event("worker_exited")["status"] == 0


def test_umask_limits_and_folder_are_the_agents(spool: ShimSpool) -> None:
    text = "import os, resource; print(oct(os.umask(0)), resource.getrlimit(resource.RLIMIT_NOFILE), os.getcwd())"

    def limit() -> None:
        import resource  # noqa: PLC0415 - in the forked child

        resource.setrlimit(resource.RLIMIT_NOFILE, (77, 99))

    ended = spool.run("-u", script(spool, text), umask=0o027, preexec_fn=limit)
    assert ended.out.decode() == f"0o27 (77, 99) {spool.cwd}\n"


def test_the_worker_has_a_group_of_its_own_and_is_the_first_to_go_when_memory_ends(spool: ShimSpool) -> None:
    text = "import os; print(os.getpid() == os.getpgrp(), open('/proc/self/oom_score_adj').read())"
    assert spool.run("-u", script(spool, text)).out.split() == [b"True", b"500"]


def test_a_killed_agent_leaves_no_worker_and_the_end_is_on_record(spool: ShimSpool) -> None:
    script(spool, LISTENER)
    code = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True).wait()"
    command = [sys.executable, "-c", code, spool.worker, "-u", "script.py"]
    with subprocess.Popen(command, cwd=spool.cwd, env=shim_environment(environment())) as agent:
        pid = spool.event("worker_started")["pid"]
        wait_for(lambda: lines(spool), "the script")
        agent.kill()
    event = spool.event("worker_exited")
    assert (event["signal"], event["pid"]) == (signal.SIGKILL, pid)
    wait_for(lambda: not alive(pid) and not alive(int(lines(spool)[0].split()[1])), "the whole group to be gone")


def test_a_killed_shim_leaves_no_worker(spool: ShimSpool) -> None:
    process = started(spool, "import threading; print('ready'); threading.Event().wait(600)")
    pid = spool.event("worker_started")["pid"]
    process.kill()
    wait_for(lambda: not alive(pid), "the worker to be gone")
    process.wait(10)


def test_an_orphaned_start_is_refused(spool: ShimSpool) -> None:
    (spool.folder / "supervisor.json").write_text(json.dumps({"pid": os.getpid()}))  # its parent is no agent
    with spool.popen("-u", script(spool, "print(1)")) as process:
        assert process.wait(10) == 127
    assert spool.events("worker_started") == []


@pytest.mark.parametrize("fault", ["missing", "forbidden", "no program"])
def test_an_interpreter_that_cannot_start_says_so_in_the_err_file(tmp_path: Path, fault: str) -> None:
    python = tmp_path / "python"
    if fault != "missing":
        python.write_text("nothing to run")
        python.chmod(0o700 if fault == "no program" else 0o600)
    ended = make_spool(tmp_path, python=str(python)).run("-u", "x.py")
    why = {"missing": "No such file or directory", "forbidden": "Permission denied", "no program": "Exec format error"}
    assert ended.returncode == 127
    assert ended.err.decode() == f"clusterddp: cannot start {python}: {why[fault]}; check clusterddp_python\n"


def test_a_spool_without_a_plan_is_one_line_for_the_agents_log(spool: ShimSpool) -> None:
    (spool.folder / "plan.json").unlink()
    with spool.popen("-u", "x.py", stderr=subprocess.PIPE) as process:
        _, said = process.communicate(timeout=10)
    assert process.returncode == 127
    assert said.startswith(b"clusterddp: cannot start a worker from")
    assert said.count(b"\n") == 1


@pytest.mark.parametrize("folder", ["with blank", "long" * 40, "quote'\"$x", "ünïcode", "colon:in"])
def test_odd_paths_change_nothing_for_the_script(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    helper = tmp_path / folder / "python3"
    helper.symlink_to(sys.executable)
    spool = make_spool(tmp_path / folder, helper=str(helper))
    text = "import os, sys; print(os.environ.get('PYTHONPATH'), [p for p in os.environ if 'HOOK' in p], sys.path[1:])"
    plain = run_plain(spool, sys.executable, "-u", script(spool, text), env=environment(PYTHONPATH="lib"))
    ended = spool.run("-u", "script.py", env=environment(PYTHONPATH="lib"))
    assert (ended.returncode, ended.out, ended.err) == (0, plain.out, b"")


def test_old_and_new_interpreters_hold_together(tmp_path: Path) -> None:
    old, new = interpreter("3.8"), interpreter("3.13")
    for number, (helper, python) in enumerate([(old, new), (new, old)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        spool = make_spool(folder, helper=helper, python=python)
        assert spool.run("-u", script(spool, "print(1)\n1/0")).returncode == 1
        assert json.loads((spool.folder / "errors" / "0.0.json").read_text())["exc_type"] == "ZeroDivisionError"


def test_the_worker_can_be_asked_whether_it_catches_the_stack_signal(spool: ShimSpool) -> None:
    process = started(spool)
    pid = spool.event("worker_started")["pid"]
    assert procfs.has_handler(pid, STACK_SIGNAL)
    assert not procfs.has_handler(pid, STACK_SIGNAL + 1)
    assert not procfs.has_handler(process.pid, STACK_SIGNAL)
    end(process, spool)


def test_a_worker_of_a_shrunken_round_is_not_started(spool: ShimSpool) -> None:
    plan = spool.folder / "plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "settings": {"elastic": False}, "world_size": 8}))
    ended = spool.run("-u", script(spool, "print('trained')"))
    assert (ended.returncode, ended.out) == (125, b"")
    assert ended.err.startswith(b"clusterddp: this round has 4 workers in place of 8")
    assert (spool.event("worker_started")["rank"], spool.event("worker_exited")["exit_code"]) == (3, 125)
