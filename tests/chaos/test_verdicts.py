"""Cause and victims end within milliseconds of each other, and the verdict names the cause, every time.

Each round is a real `clusterddp run` with torchrun on two nodes. The ranks hold TCP connections to rank 0 and raise
ConnectionResetError, as collectives do, as soon as one of them is gone. Who fails, and when, is thrown by dice.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.chaos.rounds import ROUNDS, dice
from tests.integration.cli import WAIT, Done, User
from tests.integration.memory_group import little_memory
from tests.lean import training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab

need_torch()
pytestmark = pytest.mark.torch

LONG = pytest.mark.skipif(ROUNDS == 1, reason="half a minute a round; `make chaos` does it")
PER_NODE = 2
WORLD = 2 * PER_NODE
MEMORY_LIMIT = 1 << 30  # bytes for a whole run: two agents need half of it

# `with` closes the connection while an exception is still on its way: the victims raise before the cause is on record.
RING = f"""{WAIT}
import signal, socket, struct, threading
how, culprit, wait, port = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def connect():
    while True:
        try:
            return socket.create_connection((os.environ["MASTER_ADDR"], port))
        except ConnectionRefusedError:
            pace(0.01)

def sockets():
    if rank:
        return [connect()]
    with socket.create_server(("", port), reuse_port=True) as server:
        return [server.accept()[0] for _ in range(1, world)]

class Ring:
    def __enter__(self):
        self.peers = sockets()
        for peer in self.peers:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2000)
        return self
    def __exit__(self, *_):
        for peer in self.peers:
            peer.close()
    def step(self):
        for peer in self.peers:
            peer.sendall(b"x")
        for peer in self.peers:
            if not peer.recv(1):
                raise ConnectionResetError("connection closed by peer")

def shim():
    # What torchrun started for this worker; its parent, unless it was forked.
    mine = ["%s=%s" % (name, os.environ[name]) for name in ("TORCHELASTIC_RUN_ID", "RANK")]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid) as line, open("/proc/%s/environ" % pid) as env:
                words, values = line.read().split("\\0"), env.read().split("\\0")
        except (OSError, UnicodeDecodeError):
            continue
        if any(word.endswith("/worker") for word in words) and set(mine) <= set(values):
            return int(pid)

def fail():
    if how == "raises":
        raise ValueError("loss is NaN")  # here
    if how == "exits":
        os._exit(7)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "orphaned":
        os.kill(shim(), signal.SIGKILL)
        threading.Event().wait(600)
    hoard = []
    while True:
        hoard.append(bytearray(1 << 24))

with Ring() as ring:
    ring.step()
    print("together", flush=True)
    until = time.monotonic() + wait
    while True:
        ring.step()
        if how != "never" and rank == culprit and time.monotonic() > until:
            fail()
"""
# The same with real collectives: the victims raise what gloo says.
GLOO = """
import os, signal, sys
import torch
import torch.distributed as dist
how, culprit = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
for step in range(1000000):
    dist.all_reduce(torch.ones(1000))
    if step == 20 and dist.get_rank() == culprit:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("loss is NaN")
"""
TWO_HERE = """
all:
  hosts: {{one: , two: }}
  vars: {{ansible_connection: local, clusterddp_python: {python}}}
"""
LINE_OF_RAISE = 1 + [line.endswith("# here") for line in RING.splitlines()].index(True)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    user = User(tmp_path_factory.mktemp("user"))
    user.write("inventory.yaml", TWO_HERE.format(python=training_python()))
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("ring.py", RING)
    return user


def provoke(
    user: User, how: str, number: int, prefix: tuple[str, ...] = (), options: tuple[str, ...] = ()
) -> tuple[int, Done]:
    """One round; the rank that failed, and the run."""
    throw = dice(how, number)
    culprit = throw.randrange(WORLD)
    words = (how, str(culprit), f"{throw.uniform(0, 0.3):.4f}", str(throw.randrange(20000, 28000)))
    run = ("run", *options, "--nproc-per-node", str(PER_NODE), "ring.py", *words)
    with user.start(*run, prefix=prefix) as live:
        return culprit, live.end()


def assert_named(done: Done, culprit: int, text: str) -> None:
    assert re.fullmatch(rf"rank {culprit} \(\S+\) failed first: {text}; {WORLD - 1} others stopped", done.notes[-1]), (
        done.err
    )


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("killed", 128 + signal.SIGKILL, "killed by SIGKILL"),
        ("exits", 7, "exit code 7"),
        ("raises", 1, rf"ValueError: loss is NaN \(ring\.py:{LINE_OF_RAISE}\)"),
    ],
)
def test_the_cause_is_named_and_not_its_victims(user: User, how: str, code: int, text: str, number: int) -> None:
    culprit, done = provoke(user, how, number)
    assert_named(done, culprit, text)
    assert done.code == code


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("options", [(), ("--no-fork-server",)], ids=["forked", "plain"])
def test_a_rank_whose_parent_is_killed_is_named(user: User, options: tuple[str, ...], number: int) -> None:
    culprit, done = provoke(user, "orphaned", number, options=options)
    assert_named(done, culprit, r"its parent process \(clusterddp's\) was killed by SIGKILL")
    assert done.code == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("killed", "killed by SIGKILL"),
        pytest.param("raises", r"ValueError: loss is NaN \(gloo\.py:\d+\)", marks=LONG),
    ],
)
def test_the_cause_is_named_among_collectives(user: User, how: str, text: str, number: int) -> None:
    user.write("gloo.py", GLOO)
    culprit = dice(f"gloo {how}", number).randrange(2)
    done = user.run("run", "gloo.py", how, str(culprit))
    failed = rf"rank {culprit} \(\S+\) failed first: {text}; 1 other stopped"
    assert re.fullmatch(failed, done.notes[-1]), done.err
    classes = [failure["class"] for failure in user.status(done.run)["failures"]]
    assert classes[0] == "own"
    assert set(classes[1:]) <= {"lost peer", "ended"}


@pytest.mark.parametrize("number", range(ROUNDS))
def test_memory_that_ran_out_is_named(user: User, number: int) -> None:
    with little_memory(MEMORY_LIMIT) as prefix:
        culprit, done = provoke(user, "hoards", number, prefix)
    assert_named(done, culprit, r"killed by the kernel's out-of-memory killer \(SIGKILL\)")
    assert done.code == 128 + signal.SIGKILL


@LONG
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_host_that_stays_away_is_named(make_lab: MakeLab, tmp_path: Path, number: int) -> None:
    lab = make_lab(hosts=2)
    user = User(tmp_path)
    lab.write_inventory(user.folder / "inventory.yaml")
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("ring.py", RING)
    lost = lab.hosts[dice("lost", number).randrange(2)]
    with user.start("run", "ring.py", "never", "0", "0", "20000") as live:
        live.wait_for("[0 ")
        live.wait_for("[1 ")
        lost.power_off()  # the other rank raises TimeoutError, two seconds later
        done = live.end()
    assert (done.code, done.notes[-1]) == (125, f"{lost.name} was lost: no answer")


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_host_that_was_rebooted_is_named(make_lab: MakeLab, tmp_path: Path, number: int) -> None:
    lab = make_lab(hosts=2)
    user = User(tmp_path)
    lab.write_inventory(user.folder / "inventory.yaml")
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("ring.py", RING)
    lost = lab.hosts[dice("rebooted", number).randrange(2)]
    with user.start("run", "ring.py", "never", "0", "0", "20000") as live:
        live.wait_for("[0 ")
        live.wait_for("[1 ")
        lost.power_off()
        lost.boot()
        done = live.end()
    assert (done.code, done.notes[-1]) == (125, f"{lost.name} was lost: it was rebooted")
    assert user.status(done.run)["verdict"] == done.notes[-1]
