"""`clusterddp run` where Slurm owns the machines: the same lines, codes and verdicts as over SSH."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User
from tests.lab.system import wait_until
from tests.lean import lean_python
from tests.slurm.seen import HOME, LOST, cancelled_in_the_end, nothing_is_left, thorough, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.host import LabHost
    from tests.lab.slurm import Slurm

need_torch()
pytestmark = pytest.mark.torch

SPEAK = """
import os, sys
rank = os.environ["RANK"]
print("rank", rank, "of", os.environ["WORLD_SIZE"], *sys.argv[1:], flush=True)
if "fail" in sys.argv:
    if rank == "1":
        raise ValueError("loss is NaN")
    __import__("time").sleep(60)
if "token" in sys.argv:
    print(os.environ["TOKEN"][::-1], os.environ["API_KEY"][::-1], os.environ.get("OPERATORS_OWN"))
"""
STAY = (
    WAIT
    + """
import signal
signal.signal(signal.SIGUSR1, lambda *_: print("noticed", flush=True))
print("begun", os.environ["RANK"], flush=True)
wait_for(sys.argv[1])
print("done", flush=True)
"""
)


@contextlib.contextmanager
def bashrc(host: LabHost, text: str) -> Iterator[None]:
    """Write the user's .bashrc on a host, and restore it after the block: other tests use the same host."""
    before = host.read(f"{HOME}/.bashrc")
    host.write(".bashrc", text)
    try:
        yield
    finally:
        host.write(".bashrc", before)


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> User:
    user = user_of(slurm, tmp_path, {"speak.py": SPEAK, "stay.py": STAY})
    user.env.update(OPERATORS_OWN="1")
    return user


def test_a_run_shows_labelled_lines_and_ends_with_its_code(user: User, slurm: Slurm) -> None:
    done = user.run("run", "--nnodes", "2", "speak.py", "--lr", "3e-4")
    assert done.code == 0, done.err + done.out
    said = sorted((line.rank, line.host, line.local_rank, line.text) for line in done.workers)
    assert said == [(rank, f"gpu0{rank + 1}", 0, f"rank {rank} of 2 --lr 3e-4") for rank in range(2)]
    assert re.fullmatch(r"run \w{10} succeeded in .* s.*", done.notes[-1])
    assert f"run {done.run}: 2 ranks on 2 hosts; Ctrl-C stops it, Ctrl-\\ detaches" in done.notes
    again = user.run("logs", done.run)
    assert sorted(again.lines) == sorted(done.lines)
    nothing_is_left(slurm)


def test_up_finds_slurm_on_the_login_host_and_remembers_it(user: User) -> None:
    del user.env["CLUSTERDDP_INVENTORY"]
    done = user.run("up", "inventory.yaml")
    assert done.code == 0, done.err
    assert done.notes[-2:] == ["Slurm on gpu00: partitions main, urgent", "ready; remembered inventory.yaml"]
    assert user.run("runs").notes[0] == "cluster: login host gpu00 from inventory.yaml"


@thorough
def test_a_failing_rank_is_named_with_its_traceback_and_its_code_is_the_jobs(user: User, slurm: Slurm) -> None:
    done = user.run("run", "--nnodes", "2", "--name", "nan", "speak.py", "fail")
    assert done.code == 1, done.err
    assert done.notes[-1].startswith("rank 1 (gpu02:0) failed first: ValueError: loss is NaN (speak.py:")
    assert any("traceback of rank 1 (gpu02:0):" in line for line in done.notes)
    job = user.status("nan")["job"]
    wait_until("the job has ended", lambda: "FAILED" in slurm.run("scontrol", "show", "job", "-o", job))
    assert "ExitCode=1:0" in slurm.run("scontrol", "show", "job", "-o", job)
    assert user.run("wait", job).code == 1
    nothing_is_left(slurm)


def test_a_detached_run_is_followed_looked_at_signalled_and_stopped(user: User, slurm: Slurm) -> None:
    done = user.run("run", "--nnodes", "2", "--name", "night", "--detach", "stay.py", f"{HOME}/never")
    assert (done.code, len(done.lines)) == (0, 1), done.err
    run = done.lines[0]
    with user.start("logs", "--follow", "night") as live:
        live.wait_for("[0 gpu01:0] begun 0")
        live.wait_for("[1 gpu02:0] begun 1")
        status = user.status(run)
        assert (status["state"], status["world_size"], status["launcher"]) == ("running", 2, "slurm")
        assert [host["name"] for host in status["hosts"]] == ["gpu01", "gpu02"]
        assert "stay.py" in user.run("status", status["job"], "--stacks").out
        assert any("stay.py:" in line for line in user.run("why", status["job"], "--json").json["evidence"])
        seen = user.run("top", status["job"], "--json").json
        assert [(rank["rank"], rank["host"]) for rank in seen["ranks"]] == [(0, "gpu01"), (1, "gpu02")]
        assert [host["error"] for host in seen["hosts"]] == [None, None]
        assert user.run("signal", status["job"], "USR1").code == 0
        live.wait_for("[0 gpu01:0] noticed")
        live.wait_for("[1 gpu02:0] noticed")
        stopped = user.run("stop", status["job"], "--grace", "5")
        assert stopped.code == 0, stopped.err
        assert [line.split(": ")[1] for line in stopped.notes[1:]] == ["gpu01", "gpu02"]
        assert all(line.endswith("proved empty") for line in stopped.notes[1:])
        ended = live.end()
    assert (ended.code, ended.notes[-1]) == (143, f"run {run}: stopped: by another command")
    listed = user.run("runs", "--json").json
    assert [(one["run"], one["state"]) for one in listed if one["run"] == run] == [(run, "stopped")]
    nothing_is_left(slurm)


def test_a_job_that_somebody_cancels_ends_the_run_with_143(user: User, slurm: Slurm) -> None:
    with user.start("run", "--nnodes", "2", "stay.py", f"{HOME}/never") as live:
        live.wait_for("[1 gpu02:0] begun 1")
        job = user.status(live.run)["job"]
        slurm.controller.run(["scancel", job], user="root")
        done = live.end()
    assert done.code == 143, done.err
    assert "CANCELLED" in done.notes[-1]
    nothing_is_left(slurm)


@thorough
def test_secrets_and_the_operators_environment_stay_out_of_what_slurm_keeps(user: User, slurm: Slurm) -> None:
    words = ("run", "--nnodes", "1", "--secret", "TOKEN", "--env", "API_KEY=s3cretkey", "speak.py", "token")
    own = '[ -z "$SSH_CONNECTION" ] || '  # for what submits, not for what Slurm asks a login shell for
    own += "export SBATCH_EXPORT=ALL SBATCH_OUTPUT=/tmp/elsewhere-%j OPERATORS_OWN=s3cretown\n"
    with bashrc(slurm.controller, own):  # which sbatch lets win over the script's lines
        done = user.run(*words, env={"TOKEN": "s3cretvalue"})
    assert done.code == 0, done.err
    assert not slurm.compute[0].run(["sh", "-c", "ls /tmp/elsewhere-*"], check=False).stdout
    assert "[0 gpu01:0] eulavterc3s yekterc3s None" in done.lines
    nothing_is_left(slurm)  # the job's last words, which come after the run's, remove them
    kept = slurm.controller.run(["grep", "-rl", "s3cret", f"{HOME}/.clusterddp"], check=False).stdout
    spool = slurm.controller.run(["grep", "-rl", "s3cret", "/var/lib/slurmctld"], user="root", check=False).stdout
    assert kept + spool == ""


@thorough
def test_a_run_waits_in_the_queue_says_why_and_can_be_stopped_there(user: User, slurm: Slurm) -> None:
    slurm.run("sbatch", "--parsable", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 60")
    with cancelled_in_the_end(slurm), user.start("run", "--nnodes", "2", "--name", "patient", "speak.py") as live:
        live.wait_for("is queued (Resources", stream="err")
        status = user.status("patient")
        assert (status["state"], status["hosts"]) == ("queued", [])
        live.interrupt()
        done = live.end()
    assert done.code == 130, done.err
    assert user.status("patient")["state"] == "stopped"
    nothing_is_left(slurm)


SLOW_SBATCH = """#!/bin/sh
# Submits the job, and never prints its number.
/usr/bin/sbatch "$@" >/dev/null
touch "{home}/submitted"
exec tail -f /dev/null
"""


@thorough
@pytest.mark.parametrize(("array", "runs"), [((), ("cut",)), (("--array", "0-2%1"), ("cut.0", "cut.1", "cut.2"))])
def test_a_run_that_is_interrupted_while_it_is_submitted_leaves_no_job(
    user: User, slurm: Slurm, array: tuple[str, ...], runs: tuple[str, ...]
) -> None:
    login, submitted = slurm.controller, ["test", "-e", f"{HOME}/submitted"]
    login.write("slow/sbatch", SLOW_SBATCH.format(home=HOME))
    login.run(["chmod", "755", f"{HOME}/slow/sbatch"])
    login.run(["rm", "-f", f"{HOME}/submitted"])
    slurm.run("sbatch", "--parsable", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 60")
    path, run = f"export PATH={HOME}/slow:$PATH\n", ("run", "--nnodes", "2", "--name", "cut", *array, "speak.py")
    with bashrc(login, path), cancelled_in_the_end(slurm), user.start(*run) as live:
        wait_until("Slurm has the job", lambda: login.run(submitted, check=False).returncode == 0)
        live.interrupt()
        done = live.end()
        assert not slurm.run("squeue", "--noheader", "--name=cut"), done.err
    assert done.code == 130, done.err
    assert [user.status(name)["state"] for name in runs] == ["stopped"] * len(runs)
    nothing_is_left(slurm)


LATE_SBATCH = """#!/bin/sh
# Submits the job once it may.
touch "{home}/asked"
while [ ! -e "{home}/may" ]; do sleep 0.1; done
exec /usr/bin/sbatch "$@"
"""


@thorough
def test_who_looks_while_a_run_is_submitted_sees_it_waiting_and_takes_nothing_from_it(user: User, slurm: Slurm) -> None:
    """Slurm knew nothing of its job yet: who looked deleted its secrets, and kept that it was lost, in its project."""
    login, asked = slurm.controller, ["test", "-e", f"{HOME}/asked"]
    login.write("late/sbatch", LATE_SBATCH.format(home=HOME))
    login.run(["chmod", "755", f"{HOME}/late/sbatch"])
    login.run(["rm", "-f", f"{HOME}/asked", f"{HOME}/may"])
    run = ("run", "--nnodes", "1", "--name", "late", "--secret", "TOKEN", "--env", "API_KEY=s3cretkey")
    path, env = f"export PATH={HOME}/late:$PATH\n", {"TOKEN": "s3cretvalue"}
    with bashrc(login, path), cancelled_in_the_end(slurm), user.start(*run, "speak.py", "token", env=env) as live:
        wait_until("sbatch is asked", lambda: login.run(asked, check=False).returncode == 0)
        for _ in range(2):
            assert user.status("late")["state"] == "queued"
        assert "queued" in user.run("runs").out
        login.run(["touch", f"{HOME}/may"])
        done = live.end()
    assert done.code == 0, done.err
    assert "[0 gpu01:0] eulavterc3s yekterc3s None" in done.lines
    nothing_is_left(slurm)


@thorough
@pytest.mark.parametrize(
    ("variables", "words", "said"),
    [
        ({"clusterddp_slurm_partition": "nope"}, (), "Slurm refuses the job: Invalid partition name specified"),
        ({"clusterddp_slurm_partition": "closed"}, (), "permitted to use this partition"),
        ({}, ("--nnodes", "5"), "Slurm would never start job|node configuration is not available"),  # 24.11 and newer
        ({}, ("--time-limit", "9h"), "Slurm would never start job"),
        ({"clusterddp_gpus": 3}, (), "Requested node configuration is not available"),
    ],
)
def test_what_slurm_would_never_start_is_refused_in_one_line_and_nothing_is_left(
    user: User, slurm: Slurm, variables: dict[str, object], words: tuple[str, ...], said: str
) -> None:
    slurm.write_inventory({"clusterddp_python": lean_python(), **variables}, user.folder / "inventory.yaml")
    done = user.run("run", "--nnodes", "1", *words, "speak.py")
    assert done.code == 125, done.err
    assert re.search(said, done.notes[-1])
    nothing_is_left(slurm)


@thorough
def test_a_run_that_depends_on_a_job_that_failed_is_refused_and_nothing_is_left(user: User, slurm: Slurm) -> None:
    failed = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=exit 1").strip()
    wait_until("it fails", lambda: "FAILED" in slurm.run("scontrol", "show", "job", "-o", failed), timeout=60)
    lines = [f"--dependency=afterok:{failed}"]
    slurm.write_inventory(
        {"clusterddp_python": lean_python(), "clusterddp_slurm_lines": lines}, user.folder / "inventory.yaml"
    )
    done = user.run("run", "--nnodes", "1", "speak.py")
    assert done.code == 125, done.err
    assert re.search("Slurm would never start job [0-9]+: DependencyNeverSatisfied; ", done.notes[-1])
    nothing_is_left(slurm)


@thorough
def test_a_notice_of_slurms_reaches_the_workers_that_handle_it_and_ends_nothing(user: User, slurm: Slurm) -> None:
    with user.start("run", "--nnodes", "2", "stay.py", f"{HOME}/enough") as live:
        live.wait_for("[1 gpu02:0] begun 1")
        slurm.run("scancel", "--batch", "--signal=USR1", user.status(live.run)["job"])
        live.wait_for("[0 gpu01:0] noticed")
        live.wait_for("[1 gpu02:0] noticed")
        slurm.run("touch", f"{HOME}/enough")
        assert live.end().code == 0
    nothing_is_left(slurm)


@thorough
def test_a_node_that_loses_its_power_ends_the_run_with_125(user: User, own_slurm: Slurm) -> None:
    own_slurm.write_inventory({"clusterddp_python": lean_python()}, user.folder / "inventory.yaml")
    with user.start("run", "--nnodes", "2", "stay.py", f"{HOME}/never") as live:
        live.wait_for("[1 gpu02:0] begun 1")
        own_slurm.stop_controller()  # who follows does not mind
        own_slurm.start_controller()
        assert user.status(live.run)["state"] == "running"
        own_slurm.compute[1].power_off()
        done = live.end()
    assert (done.code, done.notes[-1]) == (125, LOST)


@thorough
def test_the_script_of_a_dry_run_works_when_it_is_submitted_by_hand(user: User, slurm: Slurm) -> None:
    assert user.run("run", "--nnodes", "2", "speak.py").code == 0  # the code is in its place
    script = user.run("run", "--nnodes", "2", "--dry-run", "speak.py", "by hand").out
    slurm.controller.write("by-hand.sh", script)
    job = slurm.run("sbatch", "--parsable", f"{HOME}/by-hand.sh").strip()
    wait_until("the job ends", lambda: "COMPLETED" in slurm.run("scontrol", "show", "job", "-o", job), timeout=60)
    assert sorted(user.run("logs", job).lines) == ["[0 gpu01:0] rank 0 of 2 by hand", "[1 gpu02:0] rank 1 of 2 by hand"]
