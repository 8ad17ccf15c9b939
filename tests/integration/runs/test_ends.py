"""How a run ends, and with which code: by itself, by a failure, by a limit, by the user; nothing is left."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, assert_nothing_left, helpers, user_of
from tests.lab.system import kill_and_wait, wait_until
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lab_left_clean")]

ONE, TWO = ("--limit", "gpu03"), ("--limit", "gpu01,gpu02")
ENDS = """
import os, signal, sys, threading
how, rank = sys.argv[1], os.environ["RANK"]
print("started", flush=True)
if how == "raises" and rank == "1":
    raise ValueError("loss is NaN")
if how == "hook":
    def hook(*error, before=sys.excepthook):
        before(*error)
        os._exit(42)
    sys.excepthook = hook
    raise ValueError("preempted")
if how == "full":
    raise OSError(28, "No space left on device")
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "usage":
    print(*[f"line {n}" for n in range(20)], "ends.py: error: no such thing", sep="\\n", file=sys.stderr)
    sys.exit(2)
if how.isdigit():
    sys.exit(int(how))
if how == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", flush=True)
threading.Event().wait(600)
"""
WAITS = f"""{WAIT}
print("started", flush=True)
wait_for(sys.argv[1])
print("on it goes", flush=True)
sys.exit(3)
"""
ENDED_BY_SIGTERM = re.compile(r": \d+ process(es)? ended, proved empty$")  # none needed SIGKILL
LINE_OF_RAISE = 1 + ENDS.splitlines().index('    raise ValueError("loss is NaN")')


FAILS_BEHIND = f"""{WAIT}
print("started", flush=True)
if os.environ["RANK"] == "1":
    wait_for(sys.argv[1])
    sys.exit(3)
"""


LEAVES = """
import os, socket
there = (os.environ["MASTER_ADDR"], 45455)
if os.environ["RANK"] == "0":
    link = socket.create_server(("", there[1])).accept()[0]
    link.sendall(b"x")
    if not link.recv(1):
        raise RuntimeError("Connection closed by peer")
while True:
    try:
        link = socket.create_connection(there)
        break
    except ConnectionRefusedError:
        pass
link.recv(1)
os._exit(0)
"""


def _workers(lab: Lab, name: str) -> list[str]:
    return [" ".join(seen.cmdline) for seen in lab.host(name).processes() if "fails_behind.py" in seen.cmdline[:3]]


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    files = {"ends.py": ENDS, "waits.py": WAITS, "fails_behind.py": FAILS_BEHIND, "leaves.py": LEAVES}
    return user_of(lab, tmp_path_factory.mktemp("user"), files, hosts=["gpu01", "gpu02", "gpu03"])


def test_a_worker_that_raises_ends_the_others_and_is_named(user: User) -> None:
    with user.start("run", *TWO, "ends.py", "raises") as live:
        live.wait_for("loss is NaN")
        raised = time.monotonic()
        done = live.end()
        took = time.monotonic() - raised
    assert done.code == 1
    verdict = f"rank 1 (gpu02:0) failed first: ValueError: loss is NaN (ends.py:{LINE_OF_RAISE}); 1 other stopped"
    assert done.notes[-1] == verdict
    trace = [f"line {LINE_OF_RAISE}, in <module>", '    raise ValueError("loss is NaN")', "  ValueError: loss is NaN"]
    again = user.run("logs", "--follow", done.run)
    for ends in (done, again):
        assert ends.notes[-6:-4] == ["traceback of rank 1 (gpu02:0):", "  Traceback (most recent call last):"]
        assert all(note.endswith(line) for note, line in zip(ends.notes[-4:-1], trace, strict=True))
    assert user.status(done.run)["verdict"] == verdict
    assert took < 20  # torchrun's own barrier is 300 s


def same_code_for_all_who_look(user: User, run: str, code: int) -> None:
    """`logs --follow` and `wait` end with the run's own code, its verdict last; reading alone is no failure."""
    told = user.status(run)
    for words in (["logs", "--follow"], ["wait"]):
        again = user.run(*words, run)
        assert (again.code, again.notes[-1]) == (code, f"run {run}: {told['verdict']}")
    assert told["exit_code"] == code
    assert user.run("logs", run).code == 0


def test_a_rank_that_leaves_early_is_named_beside_the_rank_that_missed_it(user: User) -> None:
    done = user.run("run", *TWO, "leaves.py")
    assert done.code == 1
    assert done.notes[-1] == (
        "rank 0 (gpu01:0) failed first: RuntimeError: Connection closed by peer (leaves.py:8); "
        "rank 1 (gpu02:0) had ended with exit code 0 before"
    )


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("7", 7, "exit code 7"),
        ("killed", 137, "killed by SIGKILL"),
        ("hook", 42, "ValueError: preempted"),
    ],
)
def test_a_run_ends_with_its_workers_own_code(user: User, how: str, code: int, text: str) -> None:
    done = user.run("run", *ONE, "ends.py", how)
    assert done.code == code
    assert done.notes[-1].startswith(f"rank 0 (gpu03:0) failed first: {text}")
    same_code_for_all_who_look(user, done.run, code)


def test_a_worker_that_ends_without_a_traceback_is_shown_by_its_last_lines(user: User) -> None:
    done = user.run("run", *ONE, "ends.py", "usage")
    said = [f"  line {number}" for number in range(11, 20)]
    assert done.notes[-12:-1] == ["last lines of rank 0 (gpu03:0):", *said, "  ends.py: error: no such thing"]
    assert done.notes[-1] == "rank 0 (gpu03:0) failed first: exit code 2: ends.py: error: no such thing"


def test_a_known_message_says_what_helps_and_the_verdict_stays_the_last_line(user: User) -> None:
    done = user.run("run", *ONE, "ends.py", "full")
    remedy, verdict = done.notes[-2:]
    assert remedy.startswith("remedy: the disk is full, or your quota used up: ")
    assert verdict.startswith("rank 0 (gpu03:0) failed first: OSError: [Errno 28] No space left on device (ends.py:")
    told = user.status(done.run)
    assert (told["verdict"], told["remedy"]) == (verdict, remedy.removeprefix("remedy: "))
    assert [(failure["class"], failure["rank"], failure["recovered"]) for failure in told["failures"]] == [
        ("own", 0, False)
    ]
    shown = user.run("status", done.run).out
    assert f"verdict: {verdict}" in shown
    assert "remedy: the disk is full" in shown


def test_what_never_started_or_lost_its_host_is_not_the_scripts_fault(user: User, lab: Lab) -> None:
    done = user.run("run", *ONE, "nowhere.py")
    assert done.code == 125
    assert "nowhere.py" in done.notes[-1]
    with user.start("run", *ONE, "ends.py", "never") as live:
        live.wait_for("started")
        lab.host("gpu03").run(["pkill", "-KILL", "-f", f"supervisor .*{live.run}"])
        lost = live.end()
    assert (lost.code, lost.notes[-1]) == (125, "gpu03 was lost: its supervisor is gone")
    same_code_for_all_who_look(user, lost.run, 125)


def test_a_time_limit_ends_a_run(user: User) -> None:
    done = user.run("run", *ONE, "--time-limit", "1s", "ends.py", "never")
    assert done.code == 124
    assert done.notes[-1] == "the time limit was reached"
    same_code_for_all_who_look(user, done.run, 124)


def test_ctrl_c_stops_the_run_on_every_host(user: User, lab: Lab) -> None:
    with user.start("run", *TWO, "ends.py", "never") as live:
        live.wait_for("[0 gpu01:0] started")
        live.wait_for("[1 gpu02:0] started")
        live.interrupt()
        done = live.end()
    assert_nothing_left(lab.hosts, done.run)
    assert done.code == 130
    *_, first, second, folder, last = done.notes
    assert [note.split(": ")[1] for note in (first, second)] == ["gpu01", "gpu02"]
    assert all(ENDED_BY_SIGTERM.search(note) for note in (first, second)), (first, second)
    assert folder.startswith(f"the files of run {done.run} are in /")
    assert last == "stopped: Ctrl-C"
    same_code_for_all_who_look(user, done.run, 130)


def test_ctrl_c_while_a_restart_does_not_come_together_is_the_end_for_all_who_look(user: User, lab: Lab) -> None:
    """One rank fails when the other has ended well: torchrun waits for that in vain."""
    go = "/tmp/the other has ended"
    with user.start("run", *TWO, "--max-restarts", "1", "fails_behind.py", go) as live:
        live.wait_for("[1 gpu02:0] started")
        wait_until("the first worker has ended", lambda: not _workers(lab, "gpu01"))
        lab.host("gpu02").write(go, "")
        seen = ["sh", "-c", f"cat ~/.clusterddp/runs/{live.run}/*/*/events.jsonl"]
        wait_until("the second worker's end is seen", lambda: "worker_exited" in lab.host("gpu02").run(seen).stdout)
        live.interrupt()
        done = live.end()
    assert_nothing_left(lab.hosts, done.run)
    assert (done.code, done.notes[-1]) == (130, "stopped: Ctrl-C")
    assert done.notes[-2] == "rank 1 (gpu02:0) had failed, and was to be started again: exit code 3"
    same_code_for_all_who_look(user, done.run, 130)


def test_a_second_ctrl_c_leaves_at_once_and_stop_finishes(user: User, lab: Lab) -> None:
    with user.start("run", *ONE, "ends.py", "ignores") as live:
        live.wait_for("deaf")
        live.interrupt()
        live.wait_for("stopping run", stream="err")
        live.interrupt()
        done = live.end()
    assert done.code == 130
    assert f"`clusterddp stop {done.run}` finishes it" in done.notes[-1]
    assert user.run("stop", done.run, "--grace", "0").code == 0
    assert_nothing_left(lab.hosts, done.run)


def test_ctrl_c_before_the_start_leaves_nothing(user: User) -> None:
    before = user.run("runs", "--json").json
    with user.start("run", *ONE, "ends.py", "never") as live:
        live.wait_for("cluster: ", stream="err")
        live.interrupt()
        done = live.end()
    assert done.code == 130
    assert [view["state"] for view in user.run("runs", "--json").json[len(before) :]] in ([], ["stopped"])


HELD = """
import sys
from clusterddp.cli.main import main
from clusterddp.project.project import Project
_, pipe, *sys.argv = sys.argv
Project.record_run = lambda *_: open(pipe).read()
sys.exit(main())
"""


def test_ctrl_c_between_the_launch_and_the_first_line_stops_the_run_with_proof(
    user: User, lab: Lab, tmp_path: Path
) -> None:
    """The operator is held where it notes the run in its index: by a pipe that nobody writes to."""
    pipe = tmp_path / "nobody"
    os.mkfifo(pipe)
    before = len(user.run("runs", "--json").json)
    with user.start("run", *ONE, "ends.py", "never", prefix=[sys.executable, "-c", HELD, str(pipe)]) as live:
        wait_until(
            "the run goes on",
            lambda: [view["state"] for view in user.run("runs", "--json").json[before:]] == ["running"],
        )
        live.interrupt()
        done = live.end()
    assert done.code == 130
    assert "Ctrl-C stops it" not in done.err
    assert done.notes[-1] == "stopped: Ctrl-C"
    assert done.notes[-3].endswith("proved empty")
    assert_nothing_left(lab.hosts, done.notes[-3].split(": ")[0])


def test_sigterm_acts_as_ctrl_c(user: User, lab: Lab) -> None:
    with user.start("run", *ONE, "ends.py", "never") as live:
        live.wait_for("started")
        live.process.send_signal(signal.SIGTERM)
        done = live.end()
    assert_nothing_left(lab.hosts, done.run)
    assert done.code == 143
    assert done.notes[-3].endswith("proved empty")
    assert done.notes[-1] == "stopped: SIGTERM to its operator"


def test_another_command_stops_the_only_live_run(user: User, lab: Lab) -> None:
    with user.start("run", *ONE, "ends.py", "never") as live:
        live.wait_for("started")
        stop = user.run("stop")
        assert_nothing_left(lab.hosts, live.run)
        done = live.end()
    assert (stop.code, done.code) == (0, 143)
    same_code_for_all_who_look(user, done.run, 143)
    assert stop.notes[-1].startswith(f"{done.run}: gpu03: ")
    assert ENDED_BY_SIGTERM.search(stop.notes[-1]), stop.notes[-1]
    assert done.notes[-1] == "stopped: by another command"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_run_outlives_its_killed_operator_and_a_lost_terminal(user: User, lab: Lab, number: signal.Signals) -> None:
    go = f"/tmp/the operator got {number.name}"
    with user.start("run", *ONE, "waits.py", go) as live:
        live.wait_for("started")
        run = live.run
        live.process.send_signal(number)
        assert live.end().code == -number
    assert user.status(run)["state"] == "running"
    with user.start("logs", "--follow", run) as follower:
        follower.wait_for("[0 gpu03:0] started")
        follower.interrupt()  # only stops looking
        left = follower.end()
    assert left.code == 130
    shows, ends = f"`clusterddp logs --follow {run}` shows it again", f"`clusterddp stop {run}` ends it"
    assert left.notes[-1] == f"run {run} goes on; {shows}, {ends}"
    with user.start("logs", "--follow", run) as follower:
        follower.wait_for("[0 gpu03:0] started")
        lab.host("gpu03").write(go, "")
        done = follower.end()
    assert [said.text for said in done.workers] == ["started", "on it goes"]
    assert done.code == 3
    assert "rank 0 (gpu03:0) failed first: exit code 3" in done.notes[-1]


def test_a_full_disk_under_the_operators_own_output_ends_only_the_looking(user: User, lab: Lab) -> None:
    go = "/tmp/the output may end"
    with user.start("run", *ONE, "waits.py", go, prefix=("sh", "-c", 'exec "$@" >/dev/full', "sh")) as live:
        run = live.run
        done = live.end()
    assert done.code == 125
    assert f"the output cannot be written (No space left on device); run {run} goes on" in done.notes[-2]
    with user.start("logs", "--follow", run) as follower:
        follower.wait_for("[0 gpu03:0] started")
        lab.host("gpu03").write(go, "")
        assert follower.end().code == 3


def test_a_detached_run_prints_its_id_alone_and_can_be_waited_for(user: User) -> None:
    done = user.run("run", *ONE, "--detach", "ends.py", "5")
    assert done.code == 0
    (run,) = done.lines
    other = user.run("run", *TWO, "--detach", "--name", "second", "ends.py", "0").lines[0]
    both = user.run("wait", run, "second")
    assert both.code == 5
    assert both.notes[-1] == f"run {other}: succeeded"
    assert both.notes[-2].startswith(f"run {run}: rank 0 (gpu03:0) failed first: exit code 5")
    same_code_for_all_who_look(user, run, 5)
    same_code_for_all_who_look(user, other, 0)


def test_wait_asks_again_when_hosts_do_not_answer_for_a_while(user: User, lab: Lab) -> None:
    """Its helper is killed: that alone neither ends the wait nor makes it say anything but the truth."""
    go = "/tmp/the wait may end"
    (run,) = user.run("run", *ONE, "--detach", "waits.py", go).lines
    with user.start("wait", run) as waiter:
        host = lab.host("gpu03")
        wait_until("it asks", lambda: len(helpers(host)) > 1)
        wait_until("it waits", lambda: len(helpers(host)) == 1)
        for _ in range(3):
            wait_until("it has a connection", lambda: helpers(host))
            kill_and_wait(helpers(host))
        host.write(go, "")
        done = waiter.end()
    assert (done.code, done.notes[-1]) == (3, f"run {run}: {user.status(run)['verdict']}")
