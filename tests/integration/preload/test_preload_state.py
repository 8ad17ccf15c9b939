"""What two trials of a package compare: numbers of one process, and torch's own generators."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.integration.fork_spool import LOADED
from tests.integration.preload.test_preload import install, tried
from tests.lean import training_python

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_a_number_that_is_a_trials_pid_by_chance_is_no_value_of_one_process(tmp_path: Path) -> None:
    """In a container pids are as small as the numbers of any table."""
    table = f"TABLE = list(range({os.getpid()}, {os.getpid()} + 50_000))\n"  # with the pids of all that is started soon
    packages = {
        "numbers": table,
        "keeps_pid": "import os\nPID = os.getpid()\n",
        "draws": table + "import secrets\nTABLE.append(secrets.token_hex())\n",
        "draws_too": "import os, secrets\nBOTH = [os.getpid(), secrets.token_hex()]\n",
    }
    found = tried(tmp_path, list(packages), install(tmp_path, packages))
    differs = "%s is another in each process that imports it, and all workers would share one"
    assert {name: verdict[0] for name, verdict in found.items()} == {
        "numbers": "", "keeps_pid": "", "draws": differs % "draws.TABLE", "draws_too": differs % "draws_too.BOTH"
    }  # fmt: skip


def test_torchs_own_generators_are_found_where_a_package_makes_one(tmp_path: Path) -> None:
    packages = {
        "attribute": "import torch\nG = torch.Generator()\n",
        "listed": "import torch\nmade = [lambda g=torch.Generator(): g]\n",
        "tensor": "import torch\nW = torch.rand(3)\n",
        "default": "import torch\nG = torch.default_generator\nZ = torch.zeros(3)\n",
    }
    found = tried(tmp_path, list(packages), install(tmp_path, packages), python=training_python(), first=LOADED)
    why = "it keeps a random generator of its own in %s, of the type torch._C.Generator, which all workers would share"
    assert {name: verdict[0] for name, verdict in found.items()} == {
        "attribute": why % "attribute.G",
        "listed": why % "listed.made",
        "tensor": "tensor.W is another in each process that imports it, and all workers would share one",
        "default": "",
    }
