"""Slurm where the login host and the nodes share no folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.slurm.seen import nothing_is_left, thorough, user_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.slurm import Slurm

pytest.importorskip("torch", reason="torchrun is part of torch")
pytestmark = pytest.mark.torch

SPEAK = """
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:], flush=True)
"""


@thorough
def test_nodes_that_share_no_folder_are_told_in_one_line(apart_slurm: Slurm, tmp_path: Path) -> None:
    user = user_of(apart_slurm, tmp_path, {"speak.py": SPEAK})
    done = user.run("run", "--nnodes", "2", "speak.py")
    assert done.code == 125, done.err
    why = "gpu01 and gpu00 share no folder: clusterddp_state has to be in one that all nodes see"
    assert done.notes[-1] == why
    nothing_is_left(apart_slurm)
    apart_slurm.compute[0].run(["mkdir", "-p", ".clusterddp/slurm"])  # where the job's output goes
    assert user.run("run", "--nnodes", "2", "speak.py").notes[-1] == why
