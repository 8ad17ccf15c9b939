"""`pull` of a run on the lab, over real SSH: while it goes on and after it, by rank, by name; what two runs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, nothing_left
from tests.unit.sync_help import content

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab

TRAIN = (
    WAIT
    + """
rank = os.environ["RANK"]
os.makedirs("ckpt", exist_ok=True)
open(f"ckpt/rank{rank}.pt", "w").write("epoch 1")
open("ckpt/all.txt", "w").write("the same")
open("host.txt", "w").write("of rank " + rank)
print("saved", flush=True)
wait_for("go-on")
open(f"ckpt/rank{rank}.pt", "w").write("epoch 2")
"""
)


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    user.env["CLUSTERDDP_INVENTORY"] = str(lab.inventory)
    user.env["CLUSTERDDP_LIMIT"] = "gpu00,gpu01"
    with nothing_left(lab):
        yield user


def test_what_a_run_writes_comes_here_while_it_goes_on_and_after_it(user: User) -> None:
    user.write("train.py", TRAIN)
    user.write("data/set.bin", "x" * 1000)
    assert user.run("push", "data/set.bin", "sets/").code == 0
    with user.start("run", "--name", "exp1", "--nproc-per-node", "1", "train.py") as live:
        live.wait_for("[0 gpu00:0] saved")
        live.wait_for("[1 gpu01:0] saved")
        first = user.run("pull", "exp1", "now")
        assert (first.code, "host.txt" in first.notes[-1]) == (1, True)
        assert content(user.folder / "now") == {
            "ckpt/rank0.pt": "epoch 1",
            "ckpt/rank1.pt": "epoch 1",
            "ckpt/all.txt": "the same",
            "gpu00/host.txt": "of rank 0",
            "gpu01/host.txt": "of rank 1",
        }
        one = user.run("pull", "--rank", "1", "ckpt", "one")
        assert (one.code, content(user.folder / "one")) == (0, {"rank1.pt": "epoch 1", "all.txt": "the same"})
        refused = user.run("sync")  # what was pulled lies in the project, and is new data
        assert (refused.code, "is live in" in refused.notes[-1], "with other code or data" in refused.notes[-1]) == (
            1,
            True,
            True,
        )
        user.run("exec", "--", "touch", "go-on")
        assert live.end().code == 0
    last = user.run("pull", "--run", "exp1", "--host", "gpu01", "later")
    assert (last.code, content(user.folder / "later")["ckpt/rank1.pt"]) == (0, "epoch 2")
    clash = user.run("exec", "--", "mkdir", "-p", "exp1")
    assert clash.code == 0
    told = user.run("pull", "exp1")
    assert (told.code, told.notes[-1]) == (
        2,
        "exp1 is a run, and a path in the workdir; write ./exp1, or --run exp1",
    )
    assert user.run("pull", "nobody").notes[-1] == "nobody: nothing on these hosts"
    assert "no run is called ex" in user.run("pull", "--run", "ex").notes[-1]
