"""Real torch ends an operation that ranks call with other types: the run says so at its end, and `why` afterwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, used_before
from tests.lean import training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

need_torch()
pytestmark = pytest.mark.torch

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(5):
    other = step == 2 and dist.get_rank() == 1
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if other else torch.float32))
dist.destroy_process_group()
"""


def test_a_run_says_at_its_end_that_its_ranks_called_an_operation_with_other_types(tmp_path: Path) -> None:
    user = used_before(User(tmp_path))
    user.env["CLUSTERDDP_PYTHON"] = training_python()
    user.write("train.py", SCRIPT)
    done = user.run("run", "train.py")
    said = (
        f"run {done.run} ended well, but with a wrong result: ranks 0-1 called all_reduce (float32 [4]) and "
        "all_reduce (int32 [4]) as #3 of group default"
    )
    assert (done.code, said in done.notes) == (0, True), done.err
    why = json.loads(user.run("why", "--json").out)
    assert (why["state"], why["class"], why["ranks"]) == ("ended", "other-shape", [0, 1])
    assert why["sentence"] == said
