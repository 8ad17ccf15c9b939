"""The Slurm that the tests stand on is a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.lab.slurm import Slurm


def test_a_step_runs_on_every_host_with_the_gpu_that_slurm_gives_it(slurm: Slurm) -> None:
    said = slurm.run("srun", "--nodes=2", "--gpus-per-node=1", "sh", "-c", "echo $(hostname) $CUDA_VISIBLE_DEVICES")
    assert sorted(said.split("\n")) == ["", "gpu01 0", "gpu02 0"]
