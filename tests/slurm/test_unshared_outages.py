"""Slurm without a shared folder: what goes away while a run is followed, other nodes, other commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.slurm import Slurm
from tests.own_lab import own_lab
from tests.slurm.seen import LOST, STEPS, cancelled_in_the_end, nothing_is_left, thorough, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.cli import User

need_torch()
pytestmark = [pytest.mark.torch, thorough]

SCRIPT = STEPS + 'print("done of", os.environ["WORLD_SIZE"], os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)\n'
DEAF = (
    """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
    + SCRIPT
)


@pytest.fixture
def broken_slurm() -> Iterator[Slurm]:
    """The test's own, to be broken: three nodes."""
    with own_lab(4, shared_home=False) as lab:
        yield Slurm(lab, kill_wait=10).start()


def user(slurm: Slurm, folder: Path, **variables: object) -> User:
    folder.mkdir(exist_ok=True)
    scripts = {"steps.py": SCRIPT, "deaf.py": DEAF}
    return user_of(slurm, folder, scripts, clusterddp_slurm_shared=False, **variables)


def go_on(slurm: Slurm, path: str) -> None:
    """Make the file that workers on any node wait for."""
    for host in slurm.compute:
        if host.running:
            host.run(["touch", path])


def said(lines: list[str]) -> list[str]:
    return sorted(" ".join(line.split("] ")[1].split()[:2]) for line in lines)


def test_a_node_that_loses_its_power_ends_a_run_with_125(broken_slurm: Slurm, tmp_path: Path) -> None:
    own = user(broken_slurm, tmp_path)
    with own.start("run", "--nnodes", "2", "--name", "lost", "steps.py", "/tmp/never") as live:
        live.wait_for("step 0", times=2)
        broken_slurm.compute[1].power_off()
        done = live.end()
    assert (done.code, done.notes[-1]) == (125, LOST), done.err
    assert own.status("lost")["exit_code"] == 125
    nothing_is_left(broken_slurm)


def test_a_job_that_loses_a_node_goes_on_with_another_one(broken_slurm: Slurm, tmp_path: Path) -> None:
    own = user(broken_slurm, tmp_path)
    with own.start("run", "--nnodes", "2", "--relaunch", "1", "--name", "moved", "steps.py", "/tmp/more") as live:
        live.wait_for("step 0", times=2)
        broken_slurm.compute[0].power_off()  # it has the job's script
        live.wait_for("step 0", times=4)
        go_on(broken_slurm, "/tmp/more")
        done = live.end()
    assert done.code == 0, done.err
    assert "attempt 2 on gpu02, gpu03" in done.notes
    assert own.status("moved")["attempt"] == 2
    assert "gpu01 had an earlier attempt" in own.run("pull", "moved", f"{tmp_path}/pulled").err
    nothing_is_left(broken_slurm)


def test_who_follows_goes_on_after_the_controller_and_the_login_host_were_away(
    broken_slurm: Slurm, tmp_path: Path
) -> None:
    own = user(broken_slurm, tmp_path)
    with own.start("run", "--nnodes", "2", "steps.py", "/tmp/first", "/tmp/second", "/tmp/third") as live:
        live.wait_for("step 0", times=2)
        broken_slurm.stop_controller()
        go_on(broken_slurm, "/tmp/first")
        live.wait_for("step 1", times=2)
        broken_slurm.start_controller()
        broken_slurm.controller.power_off()
        broken_slurm.boot(broken_slurm.controller)
        go_on(broken_slurm, "/tmp/second")
        live.wait_for("step 2", times=2)
        go_on(broken_slurm, "/tmp/third")
        done = live.end()
    assert done.code == 0, done.err
    assert said(done.lines) == ["done of"] * 2 + ["step 0"] * 2 + ["step 1"] * 2 + ["step 2"] * 2
    nothing_is_left(broken_slurm)
    assert sorted(own.run("logs", live.run).lines) == sorted(done.lines)


def test_nodes_with_different_numbers_of_gpus_have_a_worker_for_each(tmp_path: Path) -> None:
    with own_lab(3, shared_home=False) as lab:
        slurm = Slurm(lab, gpus={"gpu02": 3}, kill_wait=10).start()
        words = {"clusterddp_slurm_lines": ["--exclusive"], "clusterddp_setup": "export LEAN_TORCH_GPUS=1"}
        done = user(slurm, tmp_path, **words).run("run", "--nnodes", "2", "steps.py")
        assert done.code == 0, done.err
        told = sorted((line.rank, line.host, line.text) for line in done.workers)
        assert told == [(0, "gpu01", "done of 4 0"), *((n, "gpu02", "done of 4 0,1,2") for n in (1, 2, 3))]
        nothing_is_left(slurm)


def test_a_run_is_repeated_and_compared(unshared_slurm: Slurm, tmp_path: Path) -> None:
    own = user(unshared_slurm, tmp_path)
    first = own.run("run", "--nnodes", "2", "--name", "first", "steps.py", "/tmp")
    own.write("steps.py", "print('other', flush=True)\n")
    again = own.run("run", "--again", "first")
    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert said(again.lines) == said(first.lines) == ["done of"] * 2 + ["step 0"] * 2
    other = own.run("run", "--nnodes", "2", "--name", "other", "steps.py")
    assert other.code == 0, other.err
    differing = own.run("runs", "--diff", "first", "other")
    assert "+print('other', flush=True)" in differing.out
    nothing_is_left(unshared_slurm)


def test_two_jobs_on_the_same_nodes_keep_apart(unshared_slurm: Slurm, tmp_path: Path) -> None:
    own = user(unshared_slurm, tmp_path)
    words = ("run", "--nnodes", "2", "steps.py", f"/tmp/both.{tmp_path.name}")
    with own.start(*words) as one, own.start(*words) as other:
        for live in (one, other):
            live.wait_for("step 0", times=2)
        go_on(unshared_slurm, words[-1])
        ends = [one.end(), other.end()]
    assert [done.code for done in ends] == [0, 0], ends[0].err + ends[1].err
    for done in ends:
        steps = [line.text for line in done.workers if line.text.startswith("step")]
        assert steps == [f"step 0 {done.run}"] * 2
    nothing_is_left(unshared_slurm)


def test_slurms_time_limit_ends_a_run_with_124(unshared_slurm: Slurm, tmp_path: Path) -> None:
    own = user(unshared_slurm, tmp_path)
    words = ("run", "--nnodes", "2", "--name", "late", "deaf.py", "/tmp/never")
    with cancelled_in_the_end(unshared_slurm), own.start(*words) as live:
        live.wait_for("step 0", times=2)
        job = own.status("late")["job"]
        unshared_slurm.controller.run(["scontrol", "update", f"JobId={job}", "TimeLimit=1"], user="root")
        done = live.end()
    line = "Slurm says TIMEOUT: its time was over; --time-limit asks for more, --relaunch lets it go on"
    assert (done.code, done.notes[-1]) == (124, line), done.err
    assert own.status("late")["exit_code"] == 124
    nothing_is_left(unshared_slurm)


def test_a_job_that_somebody_cancels_ends_a_run_with_143(unshared_slurm: Slurm, tmp_path: Path) -> None:
    own = user(unshared_slurm, tmp_path)
    with own.start("run", "--nnodes", "2", "--name", "taken", "steps.py", "/tmp/never") as live:
        live.wait_for("step 0", times=2)
        unshared_slurm.run("scancel", own.status("taken")["job"])
        done = live.end()
    assert done.code == 143, done.err
    assert "Slurm says CANCELLED" in done.notes[-1]
    nothing_is_left(unshared_slurm)
