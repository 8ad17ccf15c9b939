"""Two nodes of this machine with the frameworks, and a copy of the examples."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import EXAMPLES, User, local_processes
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INVENTORY = """
all:
  hosts: {{local0: , local1: }}
  vars:
    ansible_connection: local
    clusterddp_python: {python}
    clusterddp_env: {{OMP_NUM_THREADS: 1}}
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[User]:
    """A user whose project has the folder of examples, as this one has."""
    user = User(tmp_path)
    subprocess.run(["git", "init", "--quiet", str(user.folder)], check=True)  # the project is more than examples/
    shutil.copytree(EXAMPLES, user.folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    user.write("inventory.yaml", INVENTORY.format(python=os.environ["CLUSTERDDP_FRAMEWORKS"]))
    user.env["CLUSTERDDP_INVENTORY"] = str(user.folder / "inventory.yaml")
    user.limit = 240
    yield user
    user.run("stop", "--all", "--grace", "0")
    user.run("down", "--yes")
    wait_until("nothing is left", lambda: not local_processes(str(user.home)))
