"""GPUs as Slurm gives them: nodes that have different numbers of them, jobs that share a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User
from tests.lab.slurm import Slurm
from tests.own_lab import own_lab
from tests.slurm.seen import HOME, nothing_is_left, thorough, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

need_torch()
pytestmark = [pytest.mark.torch, thorough]

TELL = (
    WAIT
    + """
print("GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"), "of", os.environ["WORLD_SIZE"], flush=True)
wait_for(sys.argv[1])
"""
)


@pytest.fixture(scope="module")
def uneven() -> Iterator[Slurm]:
    """A node with one GPU, and one with three."""
    with own_lab(3, shared_home=True) as lab:
        yield Slurm(lab, gpus={"gpu02": 3}, kill_wait=10).start()


def user(slurm: Slurm, folder: Path, **variables: object) -> User:
    folder.mkdir(exist_ok=True)
    return user_of(slurm, folder, {"tell.py": TELL}, clusterddp_setup="export LEAN_TORCH_GPUS=1", **variables)


def test_nodes_of_a_job_that_has_them_whole_have_a_worker_for_each_gpu_of_their_own(
    uneven: Slurm, tmp_path: Path
) -> None:
    own = user(uneven, tmp_path, clusterddp_slurm_lines=["--exclusive"])
    done = own.run("run", "--nnodes", "2", "tell.py", "/")
    assert done.code == 0, done.err
    said = sorted((line.rank, line.host, line.text) for line in done.workers)
    assert said == [(0, "gpu01", "GPUs 0 of 4"), *((rank, "gpu02", "GPUs 0,1,2 of 4") for rank in (1, 2, 3))]
    nothing_is_left(uneven)


def test_each_run_of_an_array_that_has_its_node_whole_has_the_gpus_of_that_node_alone(
    uneven: Slurm, tmp_path: Path
) -> None:
    own = user(uneven, tmp_path, clusterddp_slurm_lines=["--exclusive"])
    assert own.run("run", "--nnodes", "1", "--name", "each", "--array", "0-1", "tell.py", "/").code == 0
    waited = own.run("wait", "each")
    assert waited.code == 0, waited.err
    said = sorted(line.text for index in "01" for line in own.run("logs", f"each.{index}").workers)
    assert said == ["GPUs 0 of 1", *["GPUs 0,1,2 of 3"] * 3]
    nothing_is_left(uneven)


def test_a_job_keeps_to_the_gpus_of_its_step_and_another_gets_the_rest(uneven: Slurm, tmp_path: Path) -> None:
    first = user(uneven, tmp_path / "one", clusterddp_gpus=2)
    other = user(uneven, tmp_path / "two", clusterddp_slurm_lines=["--nodelist=gpu02"], clusterddp_gpus=1)
    with first.start("run", "--nnodes", "1", "tell.py", f"{HOME}/enough") as live:
        live.wait_for("[1 gpu02:1] GPUs 0,1 of 2")
        done = other.run("run", "--nnodes", "1", "tell.py", "/")
        assert (done.code, done.lines) == (0, ["[0 gpu02:0] GPUs 2 of 1"]), done.err
        uneven.run("touch", f"{HOME}/enough")
        assert live.end().code == 0
    nothing_is_left(uneven)
