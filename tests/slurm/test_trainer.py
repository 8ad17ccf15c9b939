"""The example trainer over SSH and over Slurm: the same lines; requeued before a time limit it goes on to the bit."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import EXAMPLES, Done, User
from tests.lean import training_python
from tests.slurm.seen import nothing_is_left, thorough, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.slurm import Slurm

need_torch("the trainer trains")
pytestmark = [pytest.mark.torch, thorough]

ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # with more workers than cores those of OpenMP spin most of the time
SMALL = ("trainer.py", "--samples", "100", "--global-batch", "16", "--micro-batch", "4")
BY_SSH, BY_SLURM = ("-i", "ssh.yaml"), ("-i", "inventory.yaml", "--nnodes", "2")


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> User:
    """Somebody with the trainer and two inventories: the same two hosts by SSH, and as nodes of Slurm's."""
    unsaid = {"clusterddp_fork_server": None, "clusterddp_warm": 0}  # forked, as where an inventory says nothing
    variables = {"clusterddp_python": training_python(), "clusterddp_env": ONE_THREAD, **unsaid}
    user = user_of(slurm, tmp_path, {}, **variables)
    names = [host.name for host in slurm.compute]
    slurm.lab.write_inventory(user.folder / "ssh.yaml", hosts=names, more={"all": variables})
    shutil.copy(EXAMPLES / "trainer.py", user.folder)
    return user


def by_rank(done: Done) -> dict[int, list[str]]:
    """The labelled lines of each rank, in their order."""
    return {rank: [line for line in done.lines if line.startswith(f"[{rank} ")] for rank in range(2)}


def test_the_trainers_labelled_lines_over_slurm_are_those_over_ssh(user: User, slurm: Slurm) -> None:
    words = (*SMALL, "--epochs", "2", "--show-samples")
    by_ssh = user.run("run", *BY_SSH, *words, "--checkpoints", "ssh")
    by_slurm = user.run("run", *BY_SLURM, *words, "--checkpoints", "slurm")
    assert (by_ssh.code, by_slurm.code) == (0, 0), by_ssh.err + by_slurm.err
    assert by_rank(by_slurm) == by_rank(by_ssh)
    assert [len(lines) for lines in by_rank(by_ssh).values()] == [28, 14]  # 14 steps; rank 0 tells the losses too
    nothing_is_left(slurm)


def test_slurms_notice_before_a_time_limit_is_heeded_and_the_requeued_run_goes_on_to_the_bit(
    user: User, slurm: Slurm
) -> None:
    words = (*SMALL, "--epochs", "1000000", "--save-every", "1", "--checkpoints", "limited")
    with user.start("run", *BY_SLURM, "--time-limit", "5m", "--relaunch", "1", *words) as live:
        live.wait_for("] seen 80 ")
        job = user.status(live.run)["job"]
        slurm.controller.run(["scontrol", "update", f"JobId={job}", "TimeLimit=3"], user="root")
        live.wait_for("stops after", times=2)
        live.wait_for("resumed after")
        live.wait_for("] seen ", times=live.text("out").count("] seen ") + 20)
        assert user.run("stop", live.run).code == 0
        done = live.end()
    assert done.code == 143, done.err
    assert "attempt 2 on gpu01, gpu02" in done.notes
    first, last = (int(found) for found in re.findall(r"rank 0 stops after (\d+) samples", done.out))
    assert f"resumed after {first} samples of 2 workers, now 2" in done.out
    losses = re.findall(r"seen \d+ loss \S+", done.out)
    steps = len(losses)
    whole = user.run("run", *BY_SSH, *words[:-1], "whole", "--most-steps", str(steps))
    assert re.findall(r"seen \d+ loss \S+", whole.out) == losses
    assert f"rank 0 stops after {last} samples" in whole.out
    nothing_is_left(slurm)
