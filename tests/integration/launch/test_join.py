"""`run --join`: a host more for an elastic run that is under way, on lab hosts with real torchrun."""

from __future__ import annotations

import contextlib
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, nothing_left
from tests.remedies import remedy, type_line
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.integration.cli import Live
    from tests.lab import Lab

JOINS = remedy("cli/actions/run_action.py", "{} joins run {}; `clusterddp logs --follow {}` shows its lines")
LED = remedy("launch/ssh/join.py", "choose it too, by --limit")

need_torch()
pytestmark = pytest.mark.torch

# Goes on for ever in a world of two; ends when it is of three.
SCRIPT = f"""{WAIT}
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
print("rank", rank, "of", world, flush=True)
if world != "3":
    threading.Event().wait()
"""

WAITS = f"""{WAIT}
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
wait_for(sys.argv[1])
"""

# The rank of the host that makes it a world of three fails; then the others do, once they are told to.
FAILS = f"""{WAIT}
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
print("rank", rank, "of", world, flush=True)
assert (rank, world) != ("2", "3"), "loss is NaN"
wait_for("/tmp/go on")
sys.exit(1)
"""


def prepare(user: User, lab: Lab, script: str) -> None:
    """The user's project: the lab's inventory, and the script as train.py."""
    lab.write_inventory(user.folder / "inventory.yaml")
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("train.py", script)


def test_hosts_join_an_elastic_run_that_has_room(lab: Lab, tmp_path: Path) -> None:
    user = User(tmp_path)
    prepare(user, lab, SCRIPT)
    few, more = ("--limit", "gpu00,gpu01"), ("--limit", "gpu00,gpu01,gpu02")
    with nothing_left(lab), user.start("run", *few, "--nnodes", "1:3", "--max-restarts", "3", "train.py") as live:
        live.wait_for("rank 1 of 2")
        full = user.run("run", "--join", live.run)
        assert full.code == 125
        assert "has no room for gpu02, gpu03: it has 2 of 3 nodes; choose fewer by --limit" in full.notes[-1]
        joined = user.run("run", *more, "--join", live.run)
        assert (joined.code, joined.notes[-1].split(";")[0]) == (0, f"gpu02 joins run {live.run}")
        done = live.end()
        assert done.code == 0, done.err
        status = user.status(done.run)
        (shows,) = JOINS.commands(joined.err)
        said = type_line(user, shows).workers
    assert {(host["name"], *host["ranks"]) for host in status["hosts"]} == {("gpu00", 0), ("gpu01", 1), ("gpu02", 2)}
    assert [line.text for line in said if line.host == "gpu02"] == ["rank 2 of 3"]
    assert [line.text for line in user.run("logs", "--rank", "2", done.run).workers] == ["rank 2 of 3"]
    assert user.run("logs", "--rank", "3", done.run).notes[-1] == f"run {done.run} has no rank 3; its last rank is 2"
    again = user.run("run", "--join", done.run)
    assert again.code == 125
    assert "has ended" in again.notes[-1]


@contextlib.contextmanager
def one_of_three(lab: Lab, user: User) -> Iterator[Live]:
    """A run at work on one host that has room for two more."""
    prepare(user, lab, SCRIPT)
    with (
        nothing_left(lab),
        user.start("run", "--limit", "gpu00", "--nnodes", "1:3", "--max-restarts", "3", "train.py") as live,
    ):
        live.wait_for("rank 0 of 1")
        yield live


def test_hosts_may_join_one_after_the_other(lab: Lab, tmp_path: Path) -> None:
    user = User(tmp_path)
    with one_of_three(lab, user) as live, user.start("logs", "--follow", live.run) as other:
        joined = user.run("run", "--limit", "gpu00,gpu01", "--join", live.run)
        assert joined.code == 0, joined.err
        live.wait_for("rank 0 of 2")
        other.wait_for("rank 1 of 2")
        refused = user.run("run", "--limit", "gpu01,gpu02", "--join", live.run)
        LED.found(refused.err)
        joined = user.run("run", "--limit", "gpu00,gpu02", "--join", live.run)
        assert joined.code == 0, joined.err
        done, followed = live.end(), other.end()
        assert done.code == 0, done.err
        hosts = user.status(done.run)["hosts"]
    assert sorted(line.text for line in followed.workers if line.host != "gpu00") == [
        "rank 1 of 2",
        "rank 1 of 3",
        "rank 2 of 3",
    ]
    assert {(host["name"], *host["ranks"]) for host in hosts} == {("gpu00", 0), ("gpu01", 1), ("gpu02", 2)}


def test_two_hosts_that_join_at_the_same_moment_both_take_part(lab: Lab, tmp_path: Path) -> None:
    user = User(tmp_path)
    with one_of_three(lab, user) as live:
        with (
            user.start("run", "--limit", "gpu00,gpu01", "--join", live.run) as one,
            user.start("run", "--limit", "gpu00,gpu02", "--join", live.run) as other,
        ):
            joined = one.end(), other.end()
        assert [ended.code for ended in joined] == [0, 0], [ended.err for ended in joined]
        done = live.end()
        assert done.code == 0, done.err
        hosts = user.status(done.run)["hosts"]
    assert {host["name"] for host in hosts} == {"gpu00", "gpu01", "gpu02"}
    assert sorted(rank for host in hosts for rank in host["ranks"]) == [0, 1, 2]


@contextlib.contextmanager
def one_joins_late(lab: Lab, user: User, *words: str, restarts: int = 3) -> Iterator[Live]:
    """A run on two of three hosts, whose third, gpu01, joins it by itself as soon as it answers."""
    late = lab.host("gpu01")
    late.power_off()
    with user.start("run", "--nnodes", "2:3", "--max-restarts", str(restarts), *words, "train.py") as live:
        live.wait_for("rank 1 of 2")
        late.boot()
        yield live


def test_a_host_that_did_not_answer_at_the_start_joins_when_it_does(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, connect_timeout=2)
    user = User(tmp_path)
    prepare(user, lab, SCRIPT)
    with one_joins_late(lab, user) as live:
        done = live.end()
    assert done.code == 0, done.err
    assert "gpu01 joins" in done.notes
    assert [line.text for line in done.workers if line.host == "gpu01"] == ["rank 2 of 3"]
    assert {(host["name"], *host["ranks"]) for host in user.status(done.run)["hosts"]} == {
        ("gpu00", 0),
        ("gpu02", 1),
        ("gpu01", 2),
    }


def test_ctrl_c_proves_that_nothing_is_left_on_a_host_that_joined(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, connect_timeout=2)
    user = User(tmp_path)
    prepare(user, lab, SCRIPT.replace('"3"', '"4"'))
    with one_joins_late(lab, user, "--result", "end.json") as live:
        live.wait_for("rank 2 of 3")
        live.interrupt()
        done = live.end()
    assert done.code == 130
    for name in ("gpu00", "gpu01", "gpu02"):
        assert [note for note in done.notes if note.startswith(f"{done.run}: {name}: ")], done.err
    hosts = json.loads((user.folder / "end.json").read_text())["hosts"]
    assert {(host["name"], host["state"]) for host in hosts} == {(f"gpu0{rank}", "stopped") for rank in range(3)}


def test_what_is_said_of_a_failed_run_has_the_host_that_joined(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, connect_timeout=2)
    user = User(tmp_path)
    prepare(user, lab, FAILS)
    with one_joins_late(lab, user, "--result", "end.json", "--bundle", restarts=0) as live:
        live.wait_for("rank 2 of 3")
        for name in ("gpu00", "gpu02"):
            lab.host(name).write("/tmp/go on", "")
        failed = live.end()
    assert failed.code == 1
    assert "traceback of rank 2 (gpu01:0):" in failed.notes, failed.err
    assert "rank 2 (gpu01:0) failed first: AssertionError: loss is NaN (train.py:" in failed.notes[-1]
    (bundle,) = (user.folder / ".clusterddp" / "bundles").glob("*.tar.gz")
    with tarfile.open(bundle) as archive:
        assert [name for name in archive.getnames() if "/hosts/gpu01/" in name]
    hosts = json.loads((user.folder / "end.json").read_text())["hosts"]
    assert {host["name"]: host["state"] for host in hosts}["gpu01"] in ("failed", "stopped")


def test_another_host_takes_the_place_of_one_that_was_rebooted(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, connect_timeout=2)
    user = User(tmp_path)
    prepare(user, lab, WAITS)
    two = ("--limit", "gpu00,gpu01")
    with user.start("run", *two, "--nnodes", "1:2", "--max-restarts", "3", "train.py", "/tmp/go on") as live:
        live.wait_for("rank 1 of 2")
        lab.host("gpu01").power_off()
        live.wait_for("rank 0 of 1")
        lab.host("gpu01").boot()
        refused = user.run("run", *two, "--join", live.run)
        assert refused.code == 125
        assert "all that answer are or were in it; one that was lost from it does not come back" in refused.notes[-1]
        joined = user.run("run", "--join", live.run)
        assert (joined.code, joined.notes[-1].split(";")[0]) == (0, f"gpu02 joins run {live.run}")
        live.wait_for("rank 0 of 2", times=2)
        for name in ("gpu00", "gpu02"):
            lab.host(name).write("/tmp/go on", "")
        done = live.end()
    assert done.code == 0, done.err
    assert [line.text for line in user.run("logs", "--host", "gpu02", done.run).workers] == ["rank 1 of 2"]


def test_a_host_that_joined_is_missed_when_it_is_out_of_reach(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, connect_timeout=2)
    user = User(tmp_path)
    prepare(user, lab, WAITS)
    two = ("--limit", "gpu00,gpu01")
    with user.start("run", *two, "--nnodes", "1:3", "--max-restarts", "3", "train.py", "/tmp/go on") as live:
        live.wait_for("rank 1 of 2")
        joined = user.run("run", "--join", live.run)
        assert joined.code == 0, joined.err
        live.wait_for("rank 0 of 3")
        lab.host("gpu02").power_off()
        live.wait_for("rank 0 of 2", times=2)
        states = {host["name"]: host["state"] for host in user.status(live.run)["hosts"]}
        assert states == {"gpu00": "running", "gpu01": "running", "gpu02": "unreachable"}
        said = user.run("logs", live.run)
        assert (said.code, said.notes[-1].startswith("lines are missing: gpu02")) == (1, True), said.err
        live.interrupt()
        done = live.end()
    assert done.code == 130
    assert "gpu02: not asked (--limit gpu00,gpu01), so nothing is proved there" in done.notes, done.err
    again = user.run("stop", live.run)
    assert again.code == 1
    assert any(note.startswith(f"{live.run}: gpu02: ") for note in again.notes), again.err


def test_a_run_of_a_fixed_size_takes_nobody(lab: Lab, tmp_path: Path) -> None:
    user = User(tmp_path)
    prepare(user, lab, SCRIPT)
    with nothing_left(lab), user.start("run", "--limit", "gpu00", "train.py") as live:
        live.wait_for("rank 0 of 1")
        refused = user.run("run", "--join", live.run)
        assert refused.code == 125
        assert refused.notes[-1] == f"run {live.run} has a fixed size; start it with --nnodes MIN:MAX"
        live.interrupt()
        live.end()
