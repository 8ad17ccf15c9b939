"""The stall guard of real torchrun over two nodes on this machine: what hangs is ended or started anew."""

from __future__ import annotations

import re
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, local_processes, used_before
from tests.lab.system import wait_until
from tests.lean import training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

need_torch()
pytestmark = pytest.mark.torch

# Rank 1 leaves the loop, the first time that the workers run.
HANGS = """
import os, threading
import torch
import torch.distributed as dist

def step():
    dist.all_reduce(torch.ones(4))

dist.init_process_group("gloo")
for number in range(3):
    step()
print("together", flush=True)
if dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    threading.Event().wait(600)
step()
print("on", flush=True)
dist.destroy_process_group()  # else torch may abort at the end: docs/examples.md
"""
# For longer than the limit rank 1 prints nothing and joins nothing, but computes a fifth of the time.
WORKS = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    begin = time.monotonic()
    while time.monotonic() - begin < 16:
        burst = time.process_time()
        while time.process_time() - burst < 0.1:
            pass
        time.sleep(0.4)
dist.all_reduce(torch.ones(4))
print("on", flush=True)
dist.destroy_process_group()  # else torch may abort at the end: docs/examples.md
"""
# Nobody comes to its breakpoint, so rank 1 goes on by itself after a while.
BREAKS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    breakpoint()
dist.all_reduce(torch.ones(4))
print("on", flush=True)
dist.destroy_process_group()  # else torch may abort at the end: docs/examples.md
"""
ONE = ("--limit", "local0", "--nproc-per-node", "2")  # both ranks on one of the nodes
STALL = (
    r"rank 1 \(local1:0\) did not join all_reduce #4 of group default \(float32 \[4\]\): it is at hangs.py:14,"
    r" waiting for a lock or a thread; rank 0 waits at hangs.py:7 since \d+ s"
)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Somebody without an inventory, who trains over two nodes on this machine."""
    user = used_before(User(tmp_path))
    user.env["CLUSTERDDP_PYTHON"] = training_python()
    user.write("hangs.py", HANGS)
    user.write("works.py", WORKS)
    user.write("breaks.py", BREAKS)
    yield user
    user.run("stop", "--all", "--grace", "0")
    wait_until("nothing is left", lambda: not local_processes(str(user.home)))


def test_a_run_that_hangs_ends_by_itself_when_nobody_looks(user: User) -> None:
    with user.start("run", "--stall", "10s", "--on-stall", "stop", "hangs.py") as live:
        live.wait_for("together", times=2)
        run = live.run
        live.process.kill()
        live.end()
    ended = user.run("wait", run)
    assert ended.code == 124
    assert re.search(f"the run stalled: {STALL}$", ended.err, re.MULTILINE)
    status = user.status(run)
    assert (status["state"], status["exit_code"]) == ("failed", 124)
    path = user.run("bundle").out.strip()
    with tarfile.open(path) as packed:
        names = [one.name for one in packed if one.name.endswith("/stacks.txt")]
    assert names, "the hosts have kept the stacks of the workers that were ended"


def test_workers_that_hang_are_started_again_and_the_run_goes_on(user: User) -> None:
    done = user.run("run", "--stall", "10s", "--on-stall", "restart", "--max-restarts", "1", "hangs.py")
    assert (done.code, [one.text for one in done.workers].count("on")) == (0, 2)
    said = [note for note in done.notes if note.startswith(("stalled", "restart"))]
    assert re.fullmatch(f"stalled: {STALL}; its workers are started again \\(1 of 1\\)", said[0])
    assert said[1:] == ["restart 1 of 1: rank 1 was killed by the stall guard, to start all workers again"]


def test_a_run_that_works_in_silence_is_left_alone(user: User) -> None:
    done = user.run("run", "--stall", "10s", "--on-stall", "stop", *ONE, "works.py")
    assert (done.code, [one.text for one in done.workers]) == (0, ["on", "on"])
    assert "stalled" not in done.err


def test_a_rank_at_a_breakpoint_is_left_alone(user: User) -> None:
    done = user.run("run", "--stall", "10s", "--on-stall", "stop", "--breakpoint-timeout", "16s", *ONE, "breaks.py")
    assert (done.code, [one.text for one in done.workers].count("on")) == (0, 2)
    assert "stalled" not in done.err


def test_a_report_is_told_once_and_changes_nothing(user: User) -> None:
    told = user.folder / "told"
    notify = f'echo "$CLUSTERDDP_EVENT $CLUSTERDDP_TEXT" >> "{told}"'
    with user.start("run", "--stall", "10s", "--notify", notify, "hangs.py") as live:
        live.wait_for("stalled: ", stream="err")
        wait_until("it is told", told.exists)
        notices = user.status(live.run)["notices"]
        assert user.run("why", "--json").json["state"] == "hung"
        spools = [user.home / ".clusterddp" / "runs" / live.run / "1" / f"{rank}-local{rank}" for rank in (0, 1)]
        wait_until("both have written their parts", lambda: all(any(spool.glob("bundles/*.gz")) for spool in spools))
        user.run("stop", "--grace", "0")
        done = live.end()
        user.run("bundle", "-o", "b.tar.gz")
    with tarfile.open(user.folder / "b.tar.gz") as packed:
        saved = {
            one.name.partition("/saved-")[2].partition("/")[2]: one for one in packed if "local1/saved-" in one.name
        }
        assert {"events.jsonl", "traces.json", "outputs/start-0/rank1-0.out"} <= set(saved)
        assert b"hangs.py:14 in <module>" in packed.extractfile(saved["stacks.txt"]).read()  # type: ignore[union-attr]
    assert re.fullmatch(f"stalled stalled: {STALL}", told.read_text().splitlines()[0])
    assert len([note for note in done.notes if note.startswith("stalled: ")]) == 1
    assert re.fullmatch(f"stalled: {STALL}", notices[0])
