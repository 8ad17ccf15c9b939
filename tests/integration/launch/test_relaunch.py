"""`run --relaunch` and `--on-disconnect stop` on lab hosts: hosts lose power, operators are killed. Real torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, wait_until_nothing_is_left
from tests.lab.system import wait_until
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

# Waits in the first attempt, with a checkpoint on every host; ends in a later one, having read it.
SCRIPT = """
import os, threading
if os.environ["TORCHELASTIC_RUN_ID"].endswith(".1"):
    os.makedirs("ckpt/epoch_7")
    open("ckpt/epoch_7/weights.bin", "wb").write(b"w" * 5_000_000)
    os.symlink("epoch_7", "ckpt/last")
else:
    print(len(open("ckpt/last/weights.bin", "rb").read()), "bytes from", os.path.realpath("ckpt/last")[-7:], flush=True)
attempt = os.environ["TORCHELASTIC_RUN_ID"].rpartition(".")[2]
print("attempt", attempt, "world", os.environ["WORLD_SIZE"], flush=True)
if attempt == "1":
    threading.Event().wait()
"""


def ready(make_lab: MakeLab, tmp_path: Path) -> tuple[Lab, User]:
    """Three hosts and a spare, and a user with the script."""
    lab = make_lab(4)
    user = User(tmp_path)
    user.write("train.py", SCRIPT)
    carry = {"clusterddp_carry": ["ckpt/last"]}
    more: dict[str, dict[str, object]] = {host.name: dict(carry) for host in lab.hosts}
    more["gpu03"]["clusterddp_role"] = "spare"
    lab.write_inventory(user.folder / "inventory.yaml", more=more)
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    return lab, user


def test_a_spare_takes_the_place_of_a_host_that_lost_its_power(make_lab: MakeLab, tmp_path: Path) -> None:
    lab, user = ready(make_lab, tmp_path)
    tell = 'echo "$CLUSTERDDP_EVENT: $CLUSTERDDP_TEXT" >>told'
    with user.start("run", "--relaunch", "1", "--notify", tell, "train.py") as live:
        for rank in range(3):
            live.wait_for(f"[{rank} gpu0{rank}:0] attempt 1 world 3")
        lab.host("gpu00").power_off()
        done = live.end()
    assert done.code == 0, done.err
    kept = ["gpu01", "gpu02", "gpu03"]
    assert "attempt 2 on gpu[01:03]" in done.notes
    assert "gpu03: ckpt/last: from gpu01 (5.0 MB)" in done.notes
    told = (user.folder / "told").read_text().splitlines()
    assert {line for line in told if not line.startswith("carried: ")} == {  # the run may end before that is told
        "lost: gpu00 is lost",
        "relaunched: attempt 2 on gpu[01:03]",
        "done: succeeded after 1 relaunch",
    }
    assert sum(said.text == "5000000 bytes from epoch_7" for said in done.workers) == 3
    second = {(said.rank, said.host) for said in done.workers if said.text == "attempt 2 world 3"}
    assert second == set(enumerate(kept))
    assert user.status(done.run)["attempt"] == 2
    wait_until_nothing_is_left([lab.host(name) for name in kept], done.run)


def test_it_goes_on_with_no_operator(make_lab: MakeLab, tmp_path: Path) -> None:
    lab, user = ready(make_lab, tmp_path)
    with user.start("run", "--relaunch", "1", "train.py") as live:
        live.wait_for("attempt 1 world 3")
        run = live.run
        live.process.kill()
    lab.host("gpu00").power_off()
    record = f"cat ~trainer/.clusterddp/runs/{run}/2/0-gpu01/exit.json"
    host = lab.host("gpu01")
    wait_until("the second attempt ends", lambda: "final" in host.run(["sh", "-c", record], check=False).stdout, 240)
    status = user.status(run)
    assert (status["attempt"], [host["name"] for host in status["hosts"]]) == (2, ["gpu01", "gpu02", "gpu03"])
    said = user.run("logs", run, "--attempt", "all").workers
    assert sorted(line.host for line in said if line.text.startswith("attempt 2")) == ["gpu01", "gpu02", "gpu03"]
    assert [line.host for line in said if line.text == "5000000 bytes from epoch_7"].count("gpu03") == 1
    assert "gpu03: ckpt/last: from gpu01 (5.0 MB)" in user.run("status", run).out


def test_a_run_ends_with_its_terminal_when_that_is_wanted(make_lab: MakeLab, tmp_path: Path) -> None:
    lab, user = ready(make_lab, tmp_path)
    with user.start("run", "--on-disconnect", "stop", "train.py") as live:
        live.wait_for("attempt 1 world 3")
        run = live.run
        live.process.kill()
    done = user.run("logs", "--follow", run)  # it looks on, and renews nothing
    assert done.code == 143
    assert "lease lapsed" in done.notes[-1]
    wait_until_nothing_is_left(lab.hosts[:3], run)
