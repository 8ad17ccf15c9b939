"""Hosts that come into a run later have its fork server too: a spare that takes a lost host's place, one that joins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, nothing_left, wait_until_nothing_is_left
from tests.integration.fork_server.test_fork_server import events
from tests.lean import training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.lab import Lab
    from tests.lab.host import LabHost

need_torch()
pytestmark = pytest.mark.torch

# Goes on for ever in the first attempt, and in a world of one.
SCRIPT = """
import os, sys, threading
attempt, world = os.environ["TORCHELASTIC_RUN_ID"].rpartition(".")[2], os.environ["WORLD_SIZE"]
print("attempt", attempt, "world", world, "torch" in sys.modules, flush=True)
if "forever" in sys.argv and attempt == "1" or world == "1":
    threading.Event().wait()
"""


def ready(make_lab: MakeLab, tmp_path: Path, hosts: int, spares: int = 0) -> tuple[Lab, User]:
    """Hosts with a fork server, the last ones spares, and a user with the script."""
    variables = {"clusterddp_python": training_python(), "clusterddp_fork_server": True, "clusterddp_warm": 0}
    lab = make_lab(hosts, variables=variables, connect_timeout=2)
    user = User(tmp_path)
    user.write("train.py", SCRIPT)
    roles: dict[str, dict[str, object]] = {
        host.name: {"clusterddp_role": "spare"} for host in lab.hosts[hosts - spares :]
    }
    lab.write_inventory(user.folder / "inventory.yaml", more=roles)
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    return lab, user


def forked(host: LabHost, run: str) -> dict[str, list[bool]]:
    """Of each agent and worker that was started there: whether it was forked."""
    told = events(host, run)
    assert not [one for one in told if one["event"] == "not_forked"]
    names = ("agent_started", "worker_started")
    return {name: [bool(one["forked"]) for one in told if one["event"] == name] for name in names}


def test_agent_and_worker_of_a_spare_are_forked_when_it_takes_a_lost_hosts_place(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    lab, user = ready(make_lab, tmp_path, 3, spares=1)
    with user.start("run", "--relaunch", "1", "train.py", "forever") as live:
        for rank in (0, 1):
            live.wait_for(f"[{rank} gpu0{rank}:0] attempt 1 world 2 True")
        lab.host("gpu01").power_off()
        done = live.end()
    assert done.code == 0, done.err
    assert "attempt 2 on gpu00, gpu02" in done.err
    last = [(said.host, said.text) for said in done.workers if said.text.startswith("attempt 2")]
    assert sorted(last) == [(host, "attempt 2 world 2 True") for host in ("gpu00", "gpu02")]
    kept = [lab.host("gpu00"), lab.host("gpu02")]
    assert forked(kept[0], done.run) == {"agent_started": [True] * 2, "worker_started": [True] * 2}
    assert forked(kept[1], done.run) == {"agent_started": [True], "worker_started": [True]}
    wait_until_nothing_is_left(kept, done.run)


def test_agent_and_workers_of_a_host_that_joins_are_forked_and_so_is_the_round_that_takes_it_in(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    lab, user = ready(make_lab, tmp_path, 2)
    words = ("--nnodes", "1:2", "--max-restarts", "2", "train.py")
    with nothing_left(lab), user.start("run", "--limit", "gpu00", *words) as live:
        live.wait_for("attempt 1 world 1 True")
        joined = user.run("run", "--join", live.run)
        assert joined.code == 0, joined.err
        done = live.end()
        assert done.code == 0, done.err
        seen = [forked(host, done.run) for host in lab.hosts]
    assert seen == [{"agent_started": [True], "worker_started": [True] * starts} for starts in (2, 1)]


def test_torchs_own_rendezvous_brings_forked_agents_together(make_lab: MakeLab, tmp_path: Path) -> None:
    lab, user = ready(make_lab, tmp_path, 2)
    done = user.run("run", "--rdzv-backend", "c10d", "train.py")
    assert done.code == 0, done.err
    assert sorted(said.text for said in done.workers) == ["attempt 1 world 2 True"] * 2
    for host in lab.hosts:
        assert forked(host, done.run) == {"agent_started": [True], "worker_started": [True]}
