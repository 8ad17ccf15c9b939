"""What messages tell a user to type under Slurm is typed as it was printed, and does what they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User
from tests.remedies import remedy, type_line
from tests.slurm.seen import cancelled_in_the_end, nothing_is_left, thorough, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.slurm import Slurm

need_torch()
pytestmark = [pytest.mark.torch, thorough]

SPEAK = "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"
STAY = WAIT + "\nprint('begun', flush=True)\nwait_for('/never')\n"
WRITE = """
import os
with open("notes.txt") as file:
    print("had", file.read(), flush=True)
if os.environ["RANK"] == "1":
    with open("notes.txt", "w") as file:
        file.write("node")
"""
PARTITION = remedy(
    "launch/slurm/client/login_host.py", "`sinfo` lists the partitions; set clusterddp_slurm_partition to one of them"
)
FIRST = remedy("cli/actions/run_action.py", "{}; `clusterddp logs --follow {}` shows the first of them")
MORE = remedy("launch/ssh/join.py", "start a new run with more nodes: --nnodes N")
TAKE = remedy("remote/slurm/code_delivery.py", "start the run again with --take project, or --take host")


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> User:
    return user_of(slurm, tmp_path, {"speak.py": SPEAK, "stay.py": STAY})


def test_a_partition_that_the_told_command_lists_takes_the_job(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "mended").mkdir()
    user = user_of(slurm, tmp_path, {"speak.py": SPEAK}, clusterddp_slurm_partition="nope")
    refused = user.run("run", "--nnodes", "1", "speak.py")
    assert refused.code == 125, refused.err
    (command,) = PARTITION.commands(refused.err)
    assert "main" in slurm.run("sh", "-c", command)
    mended = user_of(slurm, tmp_path / "mended", {"speak.py": SPEAK}, clusterddp_slurm_partition="main")
    done = mended.run("run", "--nnodes", "1", "speak.py")
    assert done.code == 0, done.err
    nothing_is_left(slurm)


def test_the_told_command_follows_the_first_run_of_an_array(user: User, slurm: Slurm) -> None:
    started = user.run("run", "--nnodes", "1", "--name", "sweep", "--array", "3-4%1", "speak.py")
    assert started.code == 0, started.err
    (command,) = FIRST.commands(started.err)
    shown = type_line(user, command)
    assert (shown.code, [line.text for line in shown.workers]) == (0, ["rank 0 of 1"]), shown.err
    assert user.run("wait", "sweep").code == 0
    assert user.run("logs", "sweep.3").lines == shown.lines
    nothing_is_left(slurm)


def test_a_run_of_a_job_takes_no_host_and_a_new_one_has_more(user: User, slurm: Slurm) -> None:
    with cancelled_in_the_end(slurm), user.start("run", "--nnodes", "1:2", "--max-restarts", "1", "stay.py") as live:
        live.wait_for("begun")
        refused = user.run("run", "--join", live.run)
        assert refused.code == 125
        assert MORE.found(refused.err), refused.err
        stopped = user.run("stop", live.run)
        assert stopped.code == 0, stopped.err
        live.end()
    done = user.run("run", "--nnodes", "2", "speak.py")
    assert sorted(line.text for line in done.workers) == ["rank 0 of 2", "rank 1 of 2"], done.err
    nothing_is_left(slurm)


@pytest.mark.parametrize(("side", "text"), [("project", "project"), ("host", "node")])
def test_a_file_that_project_and_node_both_changed_is_taken_from_the_told_side(
    unshared_slurm: Slurm, tmp_path: Path, side: str, text: str
) -> None:
    user = user_of(unshared_slurm, tmp_path, {"write.py": WRITE, "notes.txt": "first"}, clusterddp_slurm_shared=False)
    first = user.run("run", "--nnodes", "2", "write.py")
    assert first.code == 0, first.err
    user.write("notes.txt", "project")
    refused = user.run("run", "--nnodes", "2", "write.py")
    assert refused.code, refused.out
    assert TAKE.found(refused.err), refused.err
    again = user.run("run", "--nnodes", "2", "--take", side, "write.py")
    assert again.code == 0, again.err
    assert {line.host: line.text for line in again.workers} == {"gpu01": "had project", "gpu02": f"had {text}"}
    nothing_is_left(unshared_slurm)
