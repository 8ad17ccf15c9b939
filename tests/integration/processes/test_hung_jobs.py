"""A job that hangs, looked at from the operator's machine: who printed when, and which rank is where."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, nothing_left
from tests.lab.system import wait_until
from tests.lean import training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

# A real collective that one rank never joins.
HANGS = """
import os, sys, threading
import torch
import torch.distributed as dist

def validate():
    threading.Event().wait(600)

def step():
    dist.all_reduce(torch.ones(1))

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
print("together", flush=True)
validate() if rank == 1 else step()
"""
IN_VALIDATE, IN_STEP = (1 + HANGS.splitlines().index(line) for line in (
    "    threading.Event().wait(600)", "    dist.all_reduce(torch.ones(1))",
))  # fmt: skip


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    more: dict[str, dict[str, object]] = {"all": {"clusterddp_python": training_python()}}
    more["gpu00"] = {"clusterddp_nproc": 2}
    lab.write_inventory(user.folder / "inventory.yaml", more=more)
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("hangs.py", HANGS)
    with nothing_left(lab):
        yield user


def test_a_hung_collective_shows_which_rank_is_where(user: User) -> None:
    with user.start("run", "--limit", "gpu00,gpu01", "hangs.py") as live:
        for rank in range(3):
            live.wait_for(f"[{rank} gpu0")
        printed = time.time()
        silent = "no rank has printed for "
        wait_until("the silence is told", lambda: silent in user.run("status").out, 60)
        shown = user.run("status", "--stacks")
        told = user.run("status", "--stacks", "--json").json
        alone = user.run("status", "--json").json
        assert user.run("stop", "--grace", "0").code == 0
        done = live.end()
    assert [said.text for said in done.workers] == ["together"] * 3
    assert "stacks" not in alone

    assert f"ranks 0,2: hangs.py:{IN_STEP} in step" in shown.lines
    assert any(line.startswith("rank 1 (gpu00:") and line.endswith(f"hangs.py:{IN_VALIDATE} in validate")
               for line in shown.lines)  # fmt: skip
    assert any("in all_reduce" in line for line in shown.lines)
    assert any(line.startswith(silent) for line in shown.lines)

    assert [stack["rank"] for stack in told["stacks"]] == [0, 1, 2]
    assert {stack["source"] for stack in told["stacks"]} <= {"py-spy", "faulthandler"}
    assert [stack["place"].split()[-1] for stack in told["stacks"]] == ["step", "validate", "step"]
    times = [host["last_output"] for host in told["hosts"]]
    assert told["last_output"] == max(times)
    assert all(abs(printed - each) < 60 for each in times)


def test_a_rank_that_is_stopped_is_named_with_its_state(user: User, lab: Lab) -> None:
    user.write("stops.py", "import os, signal\nprint('here', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    with user.start("run", "--limit", "gpu01", "stops.py") as live:
        live.wait_for("[0 gpu01:0] here")
        (pid,) = [seen.pid for seen in lab.host("gpu01").processes() if seen.cmdline[-1:] == ("stops.py",)
                  and "TORCHELASTIC_RUN_ID" in seen.environ and "PYTHON_EXEC" not in seen.environ]  # fmt: skip
        wait_until("it is stopped", lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        shown = user.run("status", "--stacks")
        user.run("stop", "--grace", "0")
        live.end()
    assert any(line.startswith("rank 0 (gpu01:0): ") and "stopped (SIGSTOP)" in line for line in shown.lines)
    assert "no worker is there to be asked" in user.run("status", "--stacks").lines
