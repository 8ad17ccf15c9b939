"""Slurm whose nodes see what the login host writes, and the login host not what they write: an overlay of a home."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.lean import training_python
from tests.slurm.seen import nothing_is_left, thorough, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli import Done, User
    from tests.lab.slurm import Slurm

need_torch()
pytestmark = pytest.mark.torch

# It outlasts the first look at the nodes' files: a job that has ended well by then is judged by its exit status.
SPEAK = 'import os, threading\nprint("rank", os.environ["RANK"], flush=True)\nthreading.Event().wait(60)\n'
ONE_WAY = "the login host's files are seen there, and what is written there is not seen on the login host"
REMEDY = "set clusterddp_slurm_shared: false, or clusterddp_state to a folder that nodes and login host share"
MOST = 15.0  # seconds from the command to its line, where the queue is empty


@pytest.fixture
def user(one_way_slurm: Slurm, tmp_path: Path) -> User:
    return user_of(one_way_slurm, tmp_path, {"speak.py": SPEAK})


def said(user: User, *words: str) -> Done:
    """A command to its end, which comes soon."""
    began = time.monotonic()
    done = user.run(*words)
    assert time.monotonic() - began < MOST, done.err
    return done


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_run_says_within_seconds_that_nothing_of_its_nodes_is_seen_and_leaves_no_job(
    user: User, one_way_slurm: Slurm, nodes: str
) -> None:
    done = said(user, "run", "--nnodes", nodes, "speak.py")
    assert done.code == 125, done.err
    assert done.notes[-1].startswith("run ")
    assert done.notes[-1].endswith(f": {ONE_WAY}; {REMEDY}")
    assert " gpu01: /home/trainer/.clusterddp/slurm/" in done.notes[-1]
    nothing_is_left(one_way_slurm)


def test_up_and_the_doctor_know_before_and_name_the_variable(user: User, one_way_slurm: Slurm) -> None:
    done = said(user, "up", "inventory.yaml")
    assert (done.code, done.notes[-1]) == (1, f"gpu01: /home/trainer/.clusterddp: {ONE_WAY}; {REMEDY}")
    told = user.run("doctor", "--nnodes", "2", "--only", "slurm-folders,torch", "--json").json["checks"]
    (first, *_) = [one for one in told if one["name"] == "slurm-folders"]
    assert (first["verdict"], first["hosts"]) == ("fail", ["gpu01", "gpu02"])
    assert first["message"].startswith("/home/trainer/.clusterddp, ~/clusterddp/my-project-")
    assert first["message"].endswith(f": {ONE_WAY}")
    assert first["fix"].startswith("set clusterddp_slurm_shared: false")
    nothing_is_left(one_way_slurm)


@thorough
def test_a_detached_run_whose_nodes_do_not_see_each_other_ends_by_itself(user: User, one_way_slurm: Slurm) -> None:
    run = user.run("run", "--nnodes", "2", "--detach", "speak.py").lines[0]
    done = user.run("wait", run)
    assert done.code == 125
    assert done.notes[-1].endswith("share no folder: clusterddp_state has to be in one that all nodes see, or "
                                   "clusterddp_slurm_shared false")  # fmt: skip
    run = user.run("run", "--nnodes", "1", "--detach", "speak.py").lines[0]
    done = user.run("wait", run)
    line = "its job ended with 0, and nothing that gpu01 wrote is seen on gpu00; set clusterddp_slurm_shared: false"
    assert (done.code, done.notes[-1]) == (0, f"run {run}: {line}")
    nothing_is_left(one_way_slurm)


def test_a_run_works_there_once_it_is_said_that_nothing_is_shared(one_way_slurm: Slurm, tmp_path: Path) -> None:
    user = user_of(
        one_way_slurm, tmp_path, {"speak.py": SPEAK}, clusterddp_slurm_shared=False, clusterddp_python=training_python()
    )
    assert user.run("up", "inventory.yaml").code == 0
    done = user.run("run", "--nnodes", "2", "speak.py")
    assert done.code == 0, done.err
    assert sorted(one.text for one in done.workers) == ["rank 0", "rank 1"]
    nothing_is_left(one_way_slurm)
