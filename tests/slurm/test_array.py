"""A job array is as many runs, submitted as one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import EXAMPLES, WAIT, User
from tests.lab.system import wait_until
from tests.lean import training_python
from tests.slurm.seen import HOME, cancelled_in_the_end, nothing_is_left, thorough, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.slurm import Slurm

need_torch()
pytestmark = [pytest.mark.torch, thorough]

SWEEP = (
    WAIT
    + """
print("index", os.environ["SLURM_ARRAY_TASK_ID"], os.environ["CLUSTERDDP_RUN_ID"], *sys.argv[2:], flush=True)
wait_for(sys.argv[1])
"""
)

# Leaves at Slurm's notice before the time limit.
LEAVE = (
    WAIT
    + """
import signal
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
print("index", os.environ["SLURM_ARRAY_TASK_ID"], flush=True)
wait_for(sys.argv[1])
"""
)


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> User:
    return user_of(slurm, tmp_path, {"sweep.py": SWEEP})


def test_each_index_is_a_run_of_its_own_name(user: User, slurm: Slurm) -> None:
    words = ("--nnodes", "2", "--name", "sweep", "--array", "1-3%2")
    done = user.run("run", *words, "--secret", "TOKEN", "sweep.py", "/", "%a", env={"TOKEN": "s3cret"})
    assert done.code == 0, done.err
    runs = done.lines
    assert len(set(runs)) == 3
    waited = user.run("wait", "sweep")
    assert waited.code == 0, waited.err
    for index, run in enumerate(runs, 1):
        said = sorted((line.rank, line.text) for line in user.run("logs", f"sweep.{index}").workers)
        assert said == [(rank, f"index {index} {run} %a") for rank in (0, 1)]
    jobs = [user.status(run)["job"] for run in runs]
    assert [job.split("_")[1] for job in jobs] == ["1", "2", "3"]
    assert user.run("logs", "sweep").notes[-1] == "sweep is an array of 3 runs; name one of them: sweep.1"
    nothing_is_left(slurm)
    assert not slurm.controller.run(["grep", "-rl", "s3cret", f"{HOME}/.clusterddp"], check=False).stdout


def test_the_examples_sweep_runs_by_its_own_lines(slurm: Slurm, tmp_path: Path) -> None:
    text = (EXAMPLES / "sweep.py").read_text()
    user = user_of(slurm, tmp_path, {"examples/sweep.py": text}, clusterddp_python=training_python())
    start, wait = re.findall(r"^    clusterddp (.* --array .*|wait lr)$", text, re.MULTILINE)
    assert user.run(*start.split()).code == 0
    assert user.run(*wait.split()).code == 0
    for trial, rate in enumerate(("0.001", "0.01", "0.1", "1.0")):
        (said,) = user.run("logs", f"lr.{trial}").workers
        assert said.text.startswith(f"trial {trial} rate {rate} loss ")
    nothing_is_left(slurm)


def test_stop_ends_one_run_of_an_array_or_all_that_are_left(user: User, slurm: Slurm) -> None:
    words = ("run", "--nnodes", "1", "--name", "many", "--array", "0-3%2", "sweep.py", f"{HOME}/never")
    with cancelled_in_the_end(slurm):
        runs = user.run(*words).lines

        def states() -> list[str]:
            listed = {one["run"]: one["state"] for one in user.run("runs", "--json").json}
            return [listed[run] for run in runs]

        wait_until("two of them run", lambda: states() == ["running", "running", "queued", "queued"], timeout=60)
        stacks = ("status", "many.1", "--stacks")
        wait_until("its worker waits", lambda: "wait_for" in user.run(*stacks).out, timeout=60)
        assert user.run("stop", "many.1").code == 0
        wait_until("the next one runs", lambda: states() == ["running", "stopped", "running", "queued"], timeout=60)
        stopped = user.run("stop", "many")
        assert stopped.code == 0, stopped.err
        assert states() == ["stopped"] * 4
    nothing_is_left(slurm)


def test_a_run_that_is_requeued_leaves_the_others_of_its_array_alone(user: User, slurm: Slurm) -> None:
    user.write("leave.py", LEAVE)
    words = ("--nnodes", "1", "--name", "night", "--array", "0-1", "--relaunch", "1")
    with cancelled_in_the_end(slurm):
        for run in user.run("run", *words, "leave.py", f"{HOME}/go").lines:
            user.hear(run, "index")
        # Of the array's last task to start Slurm's number is that of the array.
        jobs = dict(line.split() for line in slurm.run("squeue", "--noheader", "--format=%i %A").splitlines())
        last = next(job for job, number in jobs.items() if job.startswith(f"{number}_"))
        requeued = f"night.{last[-1]}"
        slurm.run("scancel", "--batch", "--signal=USR1", last)
        wait_until("it is requeued", lambda: user.status(requeued)["attempt"] == 2, timeout=60)
        slurm.run("touch", f"{HOME}/go")
        assert user.run("wait", "night").code == 0
    assert {run: user.status(run)["attempt"] for run in ("night.0", "night.1")} == {
        "night.0": 1,
        "night.1": 1,
        requeued: 2,
    }
    nothing_is_left(slurm)


def test_over_ssh_there_is_none(user: User) -> None:
    done = user.run("run", "--launcher", "ssh", "--array", "0-3", "sweep.py", "/")
    assert done.notes[-1] == "--array: only Slurm has arrays of runs; leave it out, or give --launcher slurm"
