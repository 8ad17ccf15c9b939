"""Elastic runs through the real command line, on hosts that are powered off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, wait_until_nothing_is_left
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab

need_torch()
pytestmark = pytest.mark.torch

# No worker notices: as in a collective whose peer is gone, and nobody says so.
HANGS_WITH_ALL = """
import os, threading
print("world", os.environ["WORLD_SIZE"], flush=True)
if os.environ["WORLD_SIZE"] == "4":
    threading.Event().wait()
"""


def test_a_run_goes_on_without_hosts_that_are_dead_or_die(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(hosts=4, connect_timeout=2)
    user = User(tmp_path)
    user.write("train.py", HANGS_WITH_ALL)
    lab.write_inventory(user.folder / "inventory.yaml", more={"gpu00": {"clusterddp_nproc": 2}})
    user.up(user.folder / "inventory.yaml")
    lab.host("gpu03").power_off()
    with user.start("run", "--nnodes", "2:4", "train.py") as live:
        for rank in range(4):
            live.wait_for(f"[{rank} gpu0{max(rank - 1, 0)}:{int(rank == 1)}] world 4")
        lab.host("gpu01").power_off()
        done = live.end()
    again = [(said.rank, said.host) for said in done.workers if said.text == "world 3"]
    assert sorted(again) == [(0, "gpu00"), (1, "gpu00"), (2, "gpu02")]
    assert done.code == 0, done.err
    assert any(note.startswith("left out: gpu03: ") for note in done.notes)
    assert "gpu01 was lost: no answer" in done.notes
    assert "round 1: 3 ranks on gpu00, gpu02 (gpu01 left)" in done.notes
    assert done.notes[-1].startswith(f"run {done.run} succeeded after 1 restart, in ")
    wait_until_nothing_is_left([lab.host("gpu00"), lab.host("gpu02")], done.run)


UNTIL_TOLD = f"""{WAIT}
print("world", os.environ["WORLD_SIZE"], flush=True)
wait_for(sys.argv[1])
"""


def test_a_host_that_was_cut_off_for_a_while_joins_again(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(hosts=3)
    user = User(tmp_path)
    user.write("train.py", UNTIL_TOLD)
    user.up(lab.inventory)
    away = lab.host("gpu02")
    with user.start("run", "--nnodes", "2:3", "train.py", "/tmp/go on") as live:
        for rank in range(3):
            live.wait_for(f"[{rank} gpu0{rank}:0] world 3")
        away.cut()
        for rank in range(2):
            live.wait_for(f"[{rank} gpu0{rank}:0] world 2")
        away.heal()
        for rank in range(3):
            live.wait_for(f"[{rank} gpu0{rank}:0] world 3", times=2)
        for host in lab.hosts:
            host.write("/tmp/go on", "")
        done = live.end()
    assert done.code == 0, done.err
    assert done.notes[-1].startswith(f"run {done.run} succeeded"), done.err
    assert len([note for note in done.notes if note.startswith("round ")]) <= 4, done.err
    wait_until_nothing_is_left(lab.hosts, done.run)
