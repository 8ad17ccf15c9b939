"""A run whose hosts import torch once: agent and workers are forks, in later rounds too, and all of it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, assert_nothing_left
from tests.lean import WHOLE_TORCH

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.lab import Lab
    from tests.lab.host import LabHost

pytestmark = pytest.mark.torch
DIES_ONCE = """
import os, signal, sys, time, torch
import torch.distributed as dist
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("sum", value.item(), "again" if again else "first", flush=True)
if not again and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if not again:
    time.sleep(600)
dist.destroy_process_group()
"""


def events(host: LabHost, run: str) -> list[dict[str, object]]:
    text = host.run(["sh", "-c", f"cat ~/.clusterddp/runs/{run}/1/*/events.jsonl"]).stdout
    return [json.loads(line) for line in text.splitlines() if line]


def test_agent_and_workers_of_every_round_are_forked_and_end_with_the_run(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(1, variables={**WHOLE_TORCH, "clusterddp_fork_server": True, "clusterddp_nproc": 2})
    host = lab.hosts[0]
    user = User(tmp_path)
    user.write("train.py", DIES_ONCE)
    lab.write_inventory(user.folder / "inventory.yaml")
    words = ("run", "-i", "inventory.yaml", "-v", "--max-restarts", "1")
    done = user.run(*words, "train.py")
    assert done.code == 0, done.err
    assert sorted(line.text for line in done.workers) == ["sum 2.0 again"] * 2 + ["sum 2.0 first"] * 2
    told = events(host, done.run)
    assert [one["forked"] for one in told if one["event"] in {"agent_started", "worker_started"}] == [True] * 5, (
        done.err
    )
    ended = next(one for one in told if one["event"] == "ended")
    assert (ended["killed"], ended["survivors"]) == (0, [])
    assert_nothing_left(lab.hosts, done.run)
    user.write("train.py", "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nprint('here')\n")
    done = user.run(*words, "train.py")
    assert done.code == 0, done.err
    assert "gpu00: not from the fork server: " in done.err
    assert "train.py:2 sets OMP_NUM_THREADS, which torch may read when it is imported" in done.err
    assert [line.text for line in done.workers] == ["here"] * 2
