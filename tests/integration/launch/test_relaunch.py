"""`run --relaunch` and `--on-disconnect stop` on lab hosts: hosts lose power, operators are killed. Real torchrun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import user_of, wait_until_nothing_is_left
from tests.lab.system import wait_until
from tests.own_lab import own_lab
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.cli import Live, User
    from tests.lab import Lab
    from tests.lab.host import LabHost

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


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Six hosts for all tests of this file: three nodes and a spare, and two for `left_alone`.

    A test that powers off a host boots it again.
    """
    with own_lab(6, connect_timeout=2) as made:
        yield made


def ready(lab: Lab, folder: Path) -> User:
    """A user with the script, three hosts and a spare."""
    more: dict[str, dict[str, object]] = {host.name: {"clusterddp_carry": ["ckpt/last"]} for host in lab.hosts}
    more["gpu03"]["clusterddp_role"] = "spare"
    return user_of(lab, folder, {"train.py": SCRIPT}, hosts=[host.name for host in lab.hosts[:4]], more=more)


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A run with `--on-disconnect stop` whose operator was killed."""

    hosts: list[LabHost]
    run: str
    looks_on: Live  # `logs --follow` of it


@pytest.fixture(scope="module", autouse=True)
def left_alone(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeftAlone]:
    """Start the run before the other tests: its hosts stop it a minute after its operator was killed."""
    hosts = lab.hosts[4:]
    names = [host.name for host in hosts]
    user = user_of(lab, tmp_path_factory.mktemp("left"), {"train.py": SCRIPT}, hosts=names)
    with user.start("run", "--on-disconnect", "stop", "train.py") as live:
        live.wait_for("attempt 1 world 2", times=2)
        live.process.kill()
    with user.start("logs", "--follow", live.run) as looks_on:
        yield LeftAlone(hosts, live.run, looks_on)


def test_a_spare_takes_the_place_of_a_host_that_lost_its_power(lab: Lab, tmp_path: Path) -> None:
    user = ready(lab, tmp_path)
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
    lab.host("gpu00").boot()
    assert user.status(done.run)["attempt"] == 2
    wait_until_nothing_is_left(lab.hosts[:4], done.run)


def test_it_goes_on_with_no_operator(lab: Lab, tmp_path: Path) -> None:
    user = ready(lab, tmp_path)
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
    lab.host("gpu00").boot()
    said = user.run("logs", run, "--attempt", "all").workers
    assert sorted(line.host for line in said if line.text.startswith("attempt 2")) == ["gpu01", "gpu02", "gpu03"]
    assert [line.host for line in said if line.text == "5000000 bytes from epoch_7"].count("gpu03") == 1
    assert "gpu03: ckpt/last: from gpu01 (5.0 MB)" in user.run("status", run).out


def test_a_run_ends_with_its_terminal_when_that_is_wanted(left_alone: LeftAlone) -> None:
    done = left_alone.looks_on.end()  # it looks on, and renews nothing
    assert done.code == 143
    assert "lease lapsed" in done.notes[-1]
    wait_until_nothing_is_left(left_alone.hosts, left_alone.run)
