"""What tests on real Slurm share: a user, where his files are, and that nothing is left of a job."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import STATE, WAIT, User, wait_until_nothing_is_left
from tests.lab.system import wait_until
from tests.lean import lean_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.slurm import Slurm

HOME = "/home/trainer"
LOST = "Slurm says NODE_FAIL: a node was lost; --relaunch lets the run go on"
# A script's: a step for each path that it is given, which it waits for.
STEPS = (
    WAIT
    + """
for step, path in enumerate(sys.argv[1:]):
    print("step", step, os.environ["CLUSTERDDP_RUN_ID"], flush=True)
    wait_for(path)
"""
)
# What is longer than a few seconds, and told apart by other tests too.
thorough = pytest.mark.skipif(not os.environ.get("CLUSTERDDP_SLURM"), reason="part of `make test-slurm`")


def user_of(slurm: Slurm, folder: Path, scripts: dict[str, str], **variables: object) -> User:
    """Somebody who reaches the login host alone; ``scripts`` by name, ``variables`` of all hosts."""
    user = User(folder)
    slurm.write_inventory({"clusterddp_python": lean_python(), **variables}, user.folder / "inventory.yaml")
    user.env.update(CLUSTERDDP_INVENTORY="inventory.yaml")
    for name, text in scripts.items():
        user.write(name, text)
    return user


@contextlib.contextmanager
def cancelled_in_the_end(slurm: Slurm) -> Iterator[None]:
    """Whatever waits or runs is cancelled when the block ends."""
    try:
        yield
    finally:
        slurm.run("scancel", "--me")


def nothing_is_left(slurm: Slurm) -> None:
    """No job, and no process of any on a compute host."""
    wait_until("no job is left", lambda: not slurm.run("squeue", "--noheader"), timeout=60)
    wait_until_nothing_is_left([host for host in slurm.compute if host.running], STATE)
