"""A job that Slurm starts again is the same run's next attempt; how one ends that Slurm ends."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User
from tests.lean import lean_python
from tests.slurm.seen import HOME, cancelled_in_the_end, nothing_is_left, thorough, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.cli import Live
    from tests.lab.slurm import Slurm

need_torch()
pytestmark = pytest.mark.torch

# Resumes where it was when the notice came; goes on where the file that the test makes is there.
SAVE = (
    WAIT
    + """
import signal
state, rank = sys.argv[1], os.environ["RANK"]
saved = "%s.%s" % (state, rank)
begun = int(open(saved).read()) if os.path.exists(saved) else 0
def save(*_):
    with open(saved, "w") as file:
        file.write(str(begun + 1))
    print("saved", flush=True)
    if "leaves" in sys.argv:
        sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print("begun", begun, flush=True)
wait_for(state if begun else "/never")
print("done", flush=True)
"""
)

# Nothing but SIGKILL ends it, and it takes much memory when it is to.
DEAF = (
    WAIT
    + """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begun", flush=True)
wait_for(sys.argv[1])
kept = bytearray(os.urandom(1 << 20)) * 800
wait_for("/never")
"""
)


def saving_user(slurm: Slurm, folder: Path) -> User:
    return user_of(slurm, folder, {"save.py": SAVE})


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> User:
    return saving_user(slurm, tmp_path)


def notice(slurm: Slurm, job: str) -> None:
    """What Slurm sends before the time limit."""
    slurm.run("scancel", "--batch", "--signal=USR1", job)


def test_a_job_whose_time_is_nearly_up_is_requeued_and_goes_on_as_the_same_run(user: User, slurm: Slurm) -> None:
    state = f"{HOME}/saved"
    words = ("run", "--nnodes", "2", "--name", "long", "--relaunch", "1", "save.py", state, "leaves")
    with user.start(*words) as live:
        live.wait_for("[1 gpu02:0] begun 0")
        live.wait_for("[0 gpu01:0] begun 0")
        job = user.status("long")["job"]
        notice(slurm, job)
        live.wait_for("[0 gpu01:0] begun 1")
        live.wait_for("[1 gpu02:0] begun 1")
        status = user.status("long")
        assert (status["attempt"], status["state"], status["job"]) == (2, "running", job)
        slurm.run("touch", state)
        done = live.end()
    assert done.code == 0, done.err
    assert [note for note in done.notes if note.startswith("attempt")] == ["attempt 2 on gpu01, gpu02"]
    texts = sorted((line.rank, line.text) for line in done.workers)
    assert texts == [(rank, text) for rank in range(2) for text in ("begun 0", "begun 1", "done", "saved")]
    assert [one["state"] for one in user.run("runs", "--json").json if one["name"] == "long"] == ["succeeded"]
    both = user.run("logs", "long", "--attempt", "all").lines
    assert sorted(both) == sorted(done.lines)
    nothing_is_left(slurm)


@thorough
def test_workers_that_go_on_after_the_notice_are_ended_before_slurm_ends_them(user: User, slurm: Slurm) -> None:
    state = f"{HOME}/saved2"
    with user.start("run", "--nnodes", "2", "--relaunch", "1", "save.py", state, env={"TOKEN": "s3cret"}) as live:
        live.wait_for("[1 gpu02:0] begun 0")
        live.wait_for("[0 gpu01:0] begun 0")
        slurm.run("touch", state)
        notice(slurm, user.status(live.run)["job"])
        done = live.end()
    assert done.code == 0, done.err
    assert (
        sorted(line.text for line in done.workers) == ["begun 0"] * 2 + ["begun 1"] * 2 + ["done"] * 2 + ["saved"] * 2
    )
    nothing_is_left(slurm)


@thorough
def test_a_job_that_makes_room_for_another_is_the_same_run_when_it_comes_back(user: User, slurm: Slurm) -> None:
    state = f"{HOME}/saved3"
    words = ("run", "--nnodes", "2", "--relaunch", "1", "--secret", "TOKEN", "save.py", state)
    with cancelled_in_the_end(slurm), user.start(*words, env={"TOKEN": "s3cret"}) as live:
        live.wait_for("[1 gpu02:0] begun 0")
        live.wait_for("[0 gpu01:0] begun 0")
        run = live.run
        slurm.run("sh", "-c", f"for rank in 0 1; do echo 1 >{state}.$rank; done; touch {state}")
        urgent = ("--partition=urgent", "--exclusive", "--nodes=2", "--output=/dev/null")
        slurm.run("sbatch", *urgent, f"--wrap=while [ ! -e {HOME}/room ]; do sleep 1; done")
        live.wait_for("is queued", stream="err")
        assert user.status(run)["attempt"] == 2
        slurm.run("touch", f"{HOME}/room")
        done = live.end()
    assert done.code == 0, done.err
    assert sorted(line.text for line in done.workers) == ["begun 0"] * 2 + ["begun 1"] * 2 + ["done"] * 2
    nothing_is_left(slurm)
    assert not secrets_left(slurm)


@thorough
def test_a_run_that_was_preempted_has_all_its_relaunches_left(user: User, slurm: Slurm) -> None:
    state = f"{HOME}/saved5"
    words = ("run", "--nnodes", "2", "--relaunch", "1", "save.py", state, "leaves")
    with cancelled_in_the_end(slurm), user.start(*words) as live:
        live.wait_for("begun 0", times=2)
        slurm.run("sbatch", "--partition=urgent", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=true")
        live.wait_for("begun 0", times=4)
        notice(slurm, user.status(live.run)["job"])
        live.wait_for("begun 1", times=2)
        notice(slurm, user.status(live.run)["job"])
        done = live.end()
    line = "its time was nearly over, and all 1 relaunches are used"
    assert (done.code, done.notes[-1]) == (124, line), done.err
    status = user.status(live.run)
    assert (status["attempt"], status["state"], status["exit_code"]) == (3, "failed", 124)
    nothing_is_left(slurm)


@thorough
def test_a_stop_ends_a_run_that_waits_for_its_next_start(user: User, slurm: Slurm) -> None:
    state = f"{HOME}/saved4"
    words = (
        "run",
        "--nnodes",
        "2",
        "--name",
        "twice",
        "--relaunch",
        "5",
        "--secret",
        "TOKEN",
        "save.py",
        state,
        "leaves",
    )
    with user.start(*words, env={"TOKEN": "s3cret"}) as live:
        live.wait_for("[1 gpu02:0] begun 0")
        live.wait_for("[0 gpu01:0] begun 0")
        notice(slurm, user.status("twice")["job"])
        live.wait_for("is queued", stream="err")
        assert user.run("stop", "twice").code == 0
        done = live.end()
    assert (done.code, done.notes[-1]) == (143, "stopped: by another command")
    assert user.status("twice")["state"] == "stopped"
    nothing_is_left(slurm)
    assert not secrets_left(slurm)


@contextlib.contextmanager
def deaf(user: User, slurm: Slurm, **variables: str) -> Iterator[Live]:
    """A run with a secret, on two hosts, that nothing but SIGKILL ends."""
    slurm.write_inventory({"clusterddp_python": lean_python(), **variables}, user.folder / "inventory.yaml")
    user.write("deaf.py", DEAF)
    words = ("run", "--nnodes", "2", "--secret", "TOKEN", "deaf.py", f"{HOME}/take memory")
    with cancelled_in_the_end(slurm), user.start(*words, env={"TOKEN": "s3cret"}) as live:
        live.wait_for("[1 gpu02:0] begun")
        live.wait_for("[0 gpu01:0] begun")
        yield live


def ends_with(live: Live, user: User, slurm: Slurm, code: int, line: str) -> None:
    """The run's code and last line, now and later; nothing of it is left."""
    done = live.end()
    assert (done.code, done.notes[-1]) == (code, line), done.err
    assert user.status(live.run)["exit_code"] == code
    nothing_is_left(slurm)
    assert not secrets_left(slurm)


@thorough
def test_slurms_time_limit_ends_a_run_with_124(user: User, slurm: Slurm) -> None:
    with deaf(user, slurm) as live:
        words = ["scontrol", "update", f"JobId={user.status(live.run)['job']}", "TimeLimit=1"]
        slurm.controller.run(words, user="root")
        said = "its time was over; --time-limit asks for more, --relaunch lets it go on"
        ends_with(live, user, slurm, 124, f"Slurm says TIMEOUT: {said}")


@thorough
def test_a_job_that_takes_more_memory_than_it_has_ends_a_run_with_137(
    own_slurm_with_memory: Slurm, tmp_path: Path
) -> None:
    slurm, user = own_slurm_with_memory, User(tmp_path)
    user.env.update(CLUSTERDDP_INVENTORY="inventory.yaml")
    with deaf(user, slurm, clusterddp_slurm_mem="500M") as live:
        slurm.run("touch", f"{HOME}/take memory")
        ends_with(live, user, slurm, 137, "out of memory: Slurm has ended the job's step")


@thorough
def test_a_job_that_makes_room_and_is_not_to_come_back_ends_with_143(user: User, slurm: Slurm) -> None:
    with deaf(user, slurm) as live:
        urgent = ("--partition=urgent", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 1")
        slurm.run("sbatch", *urgent)
        ends_with(live, user, slurm, 143, "Slurm says PREEMPTED: another job took its nodes; --relaunch lets it go on")


def secrets_left(slurm: Slurm) -> str:
    return slurm.controller.run(["grep", "-rl", "s3cret", f"{HOME}/.clusterddp"], check=False).stdout
