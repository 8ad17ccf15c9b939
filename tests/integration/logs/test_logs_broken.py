"""Followers whose connections break in every way: each line comes once and in order, and the run never feels it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, helpers, nothing_left
from tests.lab.faults import connections
from tests.lab.system import ProcessId, kill_and_wait
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.integration.cli import Done, Live
    from tests.lab import Lab
    from tests.lab.host import LabHost

need_torch()
pytestmark = pytest.mark.torch

BATCH, BATCHES = 2000, 3
# A batch is written in bursts, so that a break meets lines on their way.
COUNTS = f"""{WAIT}
for batch in range({BATCHES}):
    wait_for("/tmp/batch %d" % batch)
    for number in range(batch * {BATCH}, (batch + 1) * {BATCH}):
        print("line", number, flush=True)
        if number % 50 == 0:
            pace(0.01)
"""
LINES = [f"line {number}" for number in range(BATCH * BATCHES)]


@pytest.fixture
def lab(make_lab: MakeLab) -> Iterator[Lab]:
    made = make_lab(3)
    with nothing_left(made):
        yield made


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> User:
    user = User(tmp_path)
    lab.write_inventory(user.folder / "inventory.yaml")
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("counts.py", COUNTS)
    return user


def go(lab: Lab, batch: int) -> None:
    for host in lab.hosts:
        host.write(f"/tmp/batch {batch}", "")


def shown(live: Live, batch: int) -> None:
    """Until the last line of a batch has come from every rank."""
    for rank in range(3):
        live.wait_for(f"[{rank} gpu0{rank}:0] line {(batch + 1) * BATCH - 1}\n")


def cut_ssh(host: LabHost) -> None:
    host.drop(port=22)


def reset_ssh(host: LabHost) -> None:
    host.reject(port=22)


def kill_sshd(host: LabHost) -> None:
    kill_and_wait([process for pid in connections(host.init) if (process := ProcessId.of(pid))])


def kill_helpers(host: LabHost) -> None:
    kill_and_wait(helpers(host))


def check(done: Done) -> None:
    """Every line once and in order; a break is said, and nothing else."""
    for rank in range(3):
        assert [said.text for said in done.workers if said.rank == rank] == LINES
    assert done.code == 0
    breaks = [note for note in done.notes if "are interrupted" in note]
    assert {match[1] for note in breaks if (match := re.match(r"logs of (gpu0\d) ", note))} == {
        "gpu00",
        "gpu01",
        "gpu02",
    }


@pytest.mark.parametrize(
    "faults",
    [(kill_sshd, kill_helpers, reset_ssh), (cut_ssh, lambda host: host.pause(), kill_helpers)],
    ids=["killed and reset", "silent"],
)
def test_every_line_comes_once_and_in_order_whatever_breaks(
    user: User, lab: Lab, faults: tuple[Callable[[LabHost], None], ...]
) -> None:
    with user.start("run", "counts.py") as attached:
        run = attached.run
        go(lab, 0)
        with user.start("logs", "--follow", run) as follower:
            for live in (attached, follower):
                shown(live, 0)
            go(lab, 1)
            for host, fault in zip(lab.hosts, faults, strict=True):
                fault(host)
            for live in (attached, follower):
                for host in lab.hosts:
                    live.wait_for(f"logs of {host.name} are interrupted", stream="err")
            for host in lab.hosts:
                host.heal()
                host.resume()
            for live in (attached, follower):
                shown(live, 1)
            go(lab, 2)
            check(follower.end())
        check(attached.end())
    again = user.run("logs", run)
    for rank in range(3):
        assert [said.text for said in again.workers if said.rank == rank] == LINES


def test_a_host_out_of_reach_when_the_follow_begins_is_shown_when_it_answers_at_the_runs_end(
    user: User, lab: Lab
) -> None:
    (run,) = user.run("run", "--detach", "counts.py").lines
    go(lab, 0)
    lab.host("gpu01").reject(port=22)
    with user.start("logs", "--follow", run) as follower:
        follower.wait_for("logs of gpu01 are interrupted", stream="err")
        follower.wait_for(f"[2 gpu02:0] line {BATCH - 1}\n")
        assert "gpu01:0]" not in follower.text()
        plain = user.run("logs", run)
        assert plain.code == 1
        assert {said.rank for said in plain.workers} == {0, 2}
        go(lab, 1)
        follower.wait_for(f"[2 gpu02:0] line {2 * BATCH - 1}\n")
        lab.host("gpu01").heal()  # by now it is tried every few seconds, and the run ends before that
        go(lab, 2)
        done = follower.end()
    assert done.code == 0
    for rank in range(3):
        assert [said.text for said in done.workers if said.rank == rank] == LINES
