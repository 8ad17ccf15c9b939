"""What a run may ask for over SSH and has under Slurm too: as many nodes as are free, another attempt, a repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User
from tests.slurm.seen import HOME, nothing_is_left, thorough, user_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.slurm import Slurm

pytest.importorskip("torch", reason="torchrun is part of torch")
pytestmark = [pytest.mark.torch, thorough]

STAY = (
    WAIT
    + """
print("begun", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
wait_for(sys.argv[1])
"""
)


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> User:
    return user_of(slurm, tmp_path, {"stay.py": STAY})


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
