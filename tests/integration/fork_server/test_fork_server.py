"""A run whose hosts import torch once: agent and workers are forks, in later rounds too, and all of it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, wait_until_nothing_is_left
from tests.lean import training_python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.lab import Lab
    from tests.lab.host import LabHost

pytestmark = pytest.mark.torch
DIES_TWICE = """
import os, signal, sys, threading, torch
import torch.distributed as dist
times = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), len(os.listdir(os.environ["CLUSTERDDP_RUN_DIR"]))
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("sum", value.item(), *times, flush=True)
if times[1] == 2:
    dist.destroy_process_group()
    sys.exit()
dist.barrier()
if dist.get_rank() == 1:
    open(os.path.join(os.environ["CLUSTERDDP_RUN_DIR"], f"{times[1]}"), "w") if times[0] else None
    os.kill(os.getpid(), signal.SIGKILL)
threading.Event().wait(600)
"""


def events(host: LabHost, run: str) -> list[dict[str, object]]:
    text = host.run(["sh", "-c", f"cat ~/.clusterddp/runs/{run}/*/*/events.jsonl"]).stdout
    return [json.loads(line) for line in text.splitlines() if line]


def test_agent_store_and_workers_of_every_round_and_attempt_are_forked_and_end_with_the_run(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(
        1, variables={"clusterddp_python": training_python(), "clusterddp_fork_server": True, "clusterddp_nproc": 2}
    )
    host = lab.hosts[0]
    user = User(tmp_path)
    user.write("train.py", DIES_TWICE)
    lab.write_inventory(user.folder / "inventory.yaml")
    words = ("run", "-i", "inventory.yaml", "-v", "--max-restarts", "1", "--relaunch", "2")
    done = user.run(*words, "train.py")
    assert done.code == 0, done.err
    told = events(host, done.run)
    forked = [one["event"] for one in told if one.get("forked") or one["event"] == "store_forked"]
    assert set(forked) == {"agent_started", "store_forked", "worker_started"}
    assert (forked.count("agent_started"), forked.count("store_forked")) == (3, 3), done.err
    assert not [one for one in told if one.get("forked") is False or one["event"] == "not_forked"], done.err
    assert sorted(line.text for line in done.workers) == [
        f"sum 2.0 {again} {file}" for again, file in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)] for _ in "01"
    ]
    ended = [one for one in told if one["event"] == "ended"]
    assert (ended[-1]["killed"], [one["survivors"] for one in ended]) == (0, [[], [], []])
    wait_until_nothing_is_left(lab.hosts, done.run)
