"""The examples as a user runs them: on two hosts with disks of their own, interrupted, resumed by other workers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import EXAMPLES, Done, User, nothing_left
from tests.lean import training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab
    from tests.lab.host import LabHost

need_torch("the examples train")
pytestmark = pytest.mark.torch

Losses = dict[int, float]  # by samples or steps done
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # with more workers than cores those of OpenMP spin most of the time
TWO_HERE = """
all:
  hosts: {{one: , two: }}
  vars: {{ansible_connection: local, clusterddp_python: {python}, clusterddp_env: {{OMP_NUM_THREADS: 1}}}}
"""
SMALL = ("--samples", "100", "--global-batch", "16", "--micro-batch", "4")


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    """Somebody with a copy of the examples and nothing else."""
    user = User(tmp_path_factory.mktemp("user"))
    shutil.copytree(EXAMPLES, user.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return user


@pytest.fixture(scope="module")
def two_hosts(lab: Lab, user: User) -> Iterator[Lab]:
    """The user has done `up` with two hosts of the lab, as whose forks workers start; nothing is left in the end."""
    of_all = {"clusterddp_python": training_python(), "clusterddp_env": ONE_THREAD, "clusterddp_fork_server": None}
    path = lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu00", "gpu01"], more={"all": of_all})
    assert user.run("up", str(path), "--warm", "15m").code == 0
    with nothing_left(lab):
        yield lab
        assert user.run("down", "--yes").code == 0


def good(done: Done) -> Done:
    """It has ended well, and torch had nothing to complain about."""
    assert done.code == 0, done.out + done.err
    assert "Warning" not in done.out + done.err
    return done


def losses(text: str) -> Losses:
    """What rank 0 told."""
    return {int(at): float(loss) for at, loss in re.findall(r"(?:seen|step) (\d+) loss (\S+)", text)}


def samples(text: str) -> dict[int, list[int]]:
    """Samples of all workers together, by how many had been done after them."""
    found: dict[int, list[int]] = {}
    for after, numbers in re.findall(r"after (\d+): ([\d ]*)", text):
        found.setdefault(int(after), []).extend(map(int, numbers.split()))
    return {after: sorted(numbers) for after, numbers in found.items()}


def alone(user: User, *words: str) -> str:
    """What the script says as one worker without any launcher."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env["GLOO_SOCKET_IFNAME"] = "lo"  # else Gloo looks up this machine's own name, and warns where it has no address
    done = subprocess.run(
        [training_python(), *words],
        cwd=user.folder,
        env={**os.environ, **ONE_THREAD, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def kill_worker(host: LabHost, run: str) -> None:
    """As the kernel does when memory is short: the newest process of the run there is its worker."""
    workers = [seen.pid for seen in host.leftovers(run) if "RANK" in seen.environ]
    os.kill(max(workers), signal.SIGKILL)


def test_a_run_goes_on_to_the_bit_after_a_stop_a_lost_disk_and_a_killed_worker(user: User, two_hosts: Lab) -> None:
    # It saves at every step, which takes so long that few are done until the stop arrives.
    words = ("trainer.py", *SMALL, "--epochs", "1000000", "--save-every", "1")
    with user.start("run", "--no-fork-server", "--max-restarts", "1", *words) as live:
        live.wait_for("seen 80 ")
        kill_worker(two_hosts.host("gpu01"), live.run)
        live.wait_for("of 2 workers, now 2")
        assert user.run("stop", live.run).code == 0
        stopped = live.end()
    assert stopped.code == 143
    (after,) = set(re.findall(r"stops after (\d+) samples", stopped.out))
    assert {said.rank for said in stopped.workers if " stops after " in said.text} == {0, 1}
    two_hosts.host("gpu00").run(["sh", "-c", "rm -r ~/clusterddp/*/checkpoints"])
    epochs = ("--epochs", str(int(after) // 100 + 2))
    resumed = good(user.run("run", "trainer.py", *SMALL, *epochs))
    assert f"resumed after {after} samples of 2 workers, now 2" in resumed.out
    whole = good(user.run("run", "trainer.py", *SMALL, *epochs, "--checkpoints", "whole"))
    assert list(losses(whole.out)) == sorted({**losses(stopped.out), **losses(resumed.out)})
    assert losses(whole.out) == {**losses(stopped.out), **losses(resumed.out)}
    assert not losses(stopped.out).keys() & losses(resumed.out).keys()


def test_other_numbers_of_workers_take_every_sample_once_and_lose_as_one_alone(user: User, two_hosts: Lab) -> None:
    words = ("trainer.py", *SMALL, "--epochs", "2", "--dropout", "0", "--show-samples")
    whole = alone(user, *words, "--checkpoints", str(user.home / "alone"))
    parts = [
        good(user.run("run", *more, *words, "--checkpoints", "changing", "--most-steps", steps)).out
        for more, steps in (((), "4"), (("--limit", "gpu01"), "5"), ((), "0"))
    ]
    assert "resumed after 64 samples of 2 workers, now 1" in parts[1]
    assert "resumed after 132 samples of 1 workers, now 2" in parts[2]
    taken = [after for part in parts for after in samples(part)]
    assert taken == list(samples(whole))  # no step twice, none left out
    assert samples("".join(parts)) == samples(whole)
    for epoch in (0, 100):
        of_epoch = [number for after, some in samples(whole).items() if epoch < after <= epoch + 100 for number in some]
        assert sorted(of_epoch) == list(range(100))
    assert losses("".join(parts)) == pytest.approx(losses(whole), rel=1e-3)  # sums in another order round differently
    assert two_hosts.host("gpu01").run(["sh", "-c", "ls ~/clusterddp/*/changing"]).stdout.split()[-1] == "latest"


def test_a_gpt_learns_as_one_worker_alone_would(user: User, two_hosts: Lab) -> None:
    assert two_hosts
    words = ("gpt.py", "--steps", "12", "--tell-every", "1", "--write", "40")
    whole = losses(alone(user, *words))
    done = good(user.run("run", "--nproc-per-node", "2", *words))
    assert losses(done.out) == pytest.approx(whole, rel=1e-3)
    assert whole[11] < 0.8 * whole[0]
    written = [said.text for said in done.workers if not said.text.startswith("step ")]
    assert "".join(written).startswith("T")


def test_no_thread_of_the_group_lives_when_the_interpreter_ends(user: User) -> None:
    """It could abort it, with all work done."""
    wrapper = "import os, runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    names = "[open(f'/proc/self/task/{task}/comm').read().strip() for task in os.listdir('/proc/self/task')]"
    said = alone(user, "-c", f"{wrapper}; print({names})", "toy_ddp.py", "--steps", "1")
    assert "step 0 loss" in said
    assert "gloo" not in said.splitlines()[-1]


def test_workers_talk_in_every_way(user: User, two_hosts: Lab) -> None:
    assert two_hosts
    done = good(user.run("run", "collectives.py"))
    for rank in (0, 1):
        assert [said.text for said in done.workers if said.rank == rank] == [
            "broadcast: [7, 8, 9]",
            "broadcast of an object: {'lr': 0.1, 'name': 'any object'}",
            "all-reduce, sum: [2, 1]",
            "all-reduce, maximum: 1",
            "all-gather: [[0, 0], [1, 1]]",
            f"send and receive: {1 - rank}",
            f"store: worker {1 - rank}",
            "store, a counter: 2",
        ]


def test_functions_are_called_on_other_hosts(user: User, two_hosts: Lab) -> None:
    assert two_hosts
    done = good(user.run("run", "rpc.py"))
    assert [said.text for said in done.workers] == ["pi is about 3.1416, by 2 workers", "the counter on worker1 says 6"]


def test_a_sharded_model_is_saved_by_two_and_loaded_by_one(tmp_path: Path) -> None:
    """On two nodes of this machine, which see the same folder."""
    user = User(tmp_path)
    user.write("inventory.yaml", TWO_HERE.format(python=training_python()))
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    shutil.copy(EXAMPLES / "fsdp.py", user.folder)
    folder = ("--checkpoint", str(user.home / "sharded"))
    two = good(user.run("run", "fsdp.py", "--steps", "3", *folder)).out
    one = good(user.run("run", "--nnodes", "1", "fsdp.py", "--steps", "6", *folder)).out
    assert {int(number) for number in re.findall(r"keeps (\d+) of 16705 parameters", two)} == {8320, 8385}
    assert "resumed after step 3, now 1 workers" in one
    whole = alone(user, "fsdp.py", "--steps", "6", "--checkpoint", str(user.home / "whole"))
    assert losses(two + one) == pytest.approx(losses(whole), rel=1e-3)
