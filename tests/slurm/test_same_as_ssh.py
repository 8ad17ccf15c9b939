"""What a run has over SSH and under Slurm too: nodes by name, restarts, the fork server, attempts, repetitions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User
from tests.lean import lean_python, training_python
from tests.slurm.seen import HOME, nothing_is_left, thorough, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.slurm import Slurm

need_torch()
pytestmark = [pytest.mark.torch, thorough]

STAY = (
    WAIT
    + """
print("begun", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
wait_for(sys.argv[1])
"""
)

# All fail the first time, once all have begun. (How often torchrun has restarted its workers each agent counts itself.)
ONCE = """
import os, sys, torch.distributed
torch.distributed.init_process_group("gloo")
begun = "%s.%s" % (sys.argv[1], os.environ["RANK"])
again = os.path.exists(begun)
open(begun, "w").close()
torch.distributed.barrier()
print("again" if again else "first", "of", os.environ["WORLD_SIZE"], flush=True)
torch.distributed.barrier()
raise SystemExit(0 if again else 3)
"""


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> User:
    return user_of(slurm, tmp_path, {"stay.py": STAY})


def test_nodes_that_an_inventory_names_are_those_that_the_job_gets(user: User, slurm: Slurm) -> None:
    more = {
        "all": {"clusterddp_launcher": "slurm", "clusterddp_python": lean_python()},
        "gpu00": {"clusterddp_role": "login"},
    }
    slurm.lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu00", "gpu02"], more=more)
    done = user.run("run", "stay.py", "/")
    assert (done.code, done.lines) == (0, ["[0 gpu02:0] begun 0 of 1"]), done.err
    nothing_is_left(slurm)


def test_workers_that_fail_are_started_again_within_the_job_and_forked_where_that_is_asked_for(
    user: User, slurm: Slurm
) -> None:
    variables = {"clusterddp_python": training_python(), "clusterddp_fork_server": True}
    slurm.write_inventory(variables, user.folder / "inventory.yaml")
    user.write("once.py", ONCE)
    done = user.run("run", "--nnodes", "2", "--max-restarts", "1", "once.py", f"{HOME}/once")
    assert done.code == 0, done.err
    texts = sorted((line.rank, line.text) for line in done.workers)
    assert texts == [(rank, f"{time} of 2") for rank in (0, 1) for time in ("again", "first")]
    spools = slurm.run("sh", "-c", f"cat {HOME}/.clusterddp/runs/{done.run}/1/*/events.jsonl")
    started = [event for line in spools.splitlines() if (event := json.loads(line))["event"] == "worker_started"]
    assert [event["forked"] for event in started] == [True] * 4
    nothing_is_left(slurm)


def test_a_range_of_nodes_gives_a_run_all_that_are_free(user: User, slurm: Slurm) -> None:
    done = user.run("run", "--nnodes", "1:2", "stay.py", "/")
    assert (done.code, sorted(line.text for line in done.workers)) == (0, ["begun 0 of 2", "begun 1 of 2"]), done.err
    nothing_is_left(slurm)


def test_a_lost_agent_is_another_attempt_on_the_nodes_of_the_job(user: User, slurm: Slurm) -> None:
    with user.start("run", "--nnodes", "2", "--relaunch", "1", "stay.py", f"{HOME}/again") as live:
        live.wait_for("[1 gpu02:0] begun 1")
        slurm.compute[1].run(["pkill", "-KILL", "-f", "torch.distributed.run"])
        live.wait_for("[1 gpu02:0] begun 1", times=2)
        slurm.run("touch", f"{HOME}/again")
        done = live.end()
    assert done.code == 0, done.err
    assert "attempt 2 on gpu01, gpu02" in done.notes
    nothing_is_left(slurm)


def test_a_run_is_repeated_with_the_code_that_it_had(user: User, slurm: Slurm) -> None:
    first = user.run("run", "--nnodes", "2", "--name", "first", "stay.py", "/")
    user.write("stay.py", "raise SystemExit(9)\n")
    again = user.run("run", "--again", "first")
    assert (again.code, sorted(again.lines)) == (0, sorted(first.lines)), again.err
    nothing_is_left(slurm)
