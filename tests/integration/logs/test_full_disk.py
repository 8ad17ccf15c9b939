"""A host whose disk is full: training goes on, what was lost is said, and a run ends as it would elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, assert_nothing_left, nothing_left, wait_until_nothing_is_left
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

DISK = "/small"
FULL, GO = "/tmp/the disk is full", "/tmp/go on"
LINES = 200
PRINTS = f"""{WAIT}
how, rank = sys.argv[1], os.environ["RANK"]
print("started", flush=True)
wait_for({FULL!r})
for number in range({LINES}):
    print("line", number, "x" * 1000, flush=True)
if rank == "1":
    open("/tmp/has printed", "w").close()
wait_for({GO!r})
if how == "raises" and rank == "1":
    raise ValueError("loss is NaN")
wait_for("/tmp/never") if how == "stays" else print("the end", flush=True)
"""


@pytest.fixture
def lab(make_lab: MakeLab) -> Iterator[Lab]:
    """The second of two hosts has a small disk for all that is ours."""
    made = make_lab(2)
    made.host("gpu01").small_disk(DISK, "6m")
    with nothing_left(made):
        yield made


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> User:
    user = User(tmp_path)
    lab.write_inventory(user.folder / "inventory.yaml", more={"gpu01": {"clusterddp_state": f"{DISK}/state"}})
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("prints.py", PRINTS)
    return user


def fill(lab: Lab) -> None:
    lab.host("gpu01").fill_disk(DISK)
    for host in lab.hosts:
        host.write(FULL, "")
    lab.host("gpu01").run(["sh", "-c", "until test -e '/tmp/has printed'; do sleep 0.05; done"])


def go_on(lab: Lab) -> None:
    for host in lab.hosts:
        host.write(GO, "")


@pytest.mark.parametrize(("how", "code"), [("ends", 0), ("raises", 1)])
def test_a_run_ends_as_it_would_and_says_what_was_lost(user: User, lab: Lab, how: str, code: int) -> None:
    with user.start("run", "prints.py", how) as live:
        live.wait_for("[1 gpu01:0] started")
        fill(lab)
        live.wait_for(f"[0 gpu00:0] line {LINES - 1}")
        go_on(lab)
        done = live.end()
    assert done.code == code, done.err
    (lost,) = [note for note in done.notes if "bytes of output were lost" in note]
    last = done.notes[-1]
    assert lost.startswith("gpu01: ")
    assert lost.endswith(" bytes of output were lost: disk full")
    heard = [said.text for said in done.workers if said.rank == 1]
    assert heard[0] == "started"
    assert (LINES - len(heard)) * 1000 < int(lost.split()[1]) < (LINES + 10) * 1100
    assert "the end" in [said.text for said in done.workers if said.rank == 0]
    if code:
        assert last.startswith("rank 1 (gpu01:0) failed first: exit code 1: ValueError: loss is NaN")
    assert user.run("logs", "--follow").code == code
    assert user.run("wait").code == code
    assert user.status(done.run)["notices"] == [lost]
    assert lost in user.run("status").out
    wait_until_nothing_is_left(lab.hosts, done.run)


def test_a_stop_reaches_a_host_whose_disk_is_full(user: User, lab: Lab) -> None:
    with user.start("run", "prints.py", "stays") as live:
        live.wait_for("[1 gpu01:0] started")
        fill(lab)
        (notice,) = user.status(live.run)["notices"]
        assert notice.endswith(" bytes of output were lost: disk full")
        stop = user.run("stop", "--grace", "5")
        assert_nothing_left(lab.hosts, live.run)
        done = live.end()
    assert (stop.code, done.code) == (0, 143), done.err
    assert all(note.endswith("proved empty") for note in stop.notes[-2:])
    status = user.status(done.run)
    assert (status["state"], [host["state"] for host in status["hosts"]]) == ("stopped", ["stopped", "stopped"])
