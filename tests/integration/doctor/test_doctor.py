"""The doctor on real hosts: all is well, a fault is put in and named with its host alone, taken out, all is well.

Judgements over made facts: tests/unit/checks/test_engine.py.
"""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.doctor_cli import Named, named
from tests.lab.system import command, wait_until
from tests.lean import training_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from tests.integration.cli import User
    from tests.lab import Lab
    from tests.lab.host import LabHost

pytestmark = pytest.mark.lab
SICK, ADDRESSES = "gpu01", "29400-29499"
EPHEMERAL = "32768:60999"
WORKDIRS = "/home/trainer/clusterddp"
LISTEN = """
import socket, sys, threading
kept = [socket.create_server(("", port)) for port in range(29400, 29500)]
print("listening", flush=True)
threading.Event().wait(600)
"""


@pytest.fixture(scope="module")
def lab_variants() -> dict[str, Any]:
    return {"variables": {"clusterddp_python": training_python()}}


@contextlib.contextmanager
def clock(host: LabHost) -> Iterator[None]:
    host.skew_clock(60)
    yield
    host.skew_clock(0)


@contextlib.contextmanager
def small_shm(host: LabHost) -> Iterator[None]:
    host.run(["mount", "-o", "remount,size=64m", "/dev/shm"], user="root")
    yield
    host.run(["mount", "-o", "remount,size=50%", "/dev/shm"], user="root")


@contextlib.contextmanager
def loopback_name(host: LabHost) -> Iterator[None]:
    host.name_is_loopback()
    yield
    host.mend_names()


@contextlib.contextmanager
def dead_name_server(host: LabHost) -> Iterator[None]:
    host.silence_names()
    yield
    host.mend_names()
    host.heal()


@contextlib.contextmanager
def dropped_in(host: LabHost) -> Iterator[None]:
    host.drop("29400:29499")
    yield
    host.heal()


@contextlib.contextmanager
def rejected_out(host: LabHost) -> Iterator[None]:
    host.reject("29400:29499", direction="out", answer="icmp-host-unreachable")
    yield
    host.heal()


@contextlib.contextmanager
def refused_in(host: LabHost) -> Iterator[None]:
    host.reject("29400:29499")
    yield
    host.heal()


@contextlib.contextmanager
def no_new_ephemeral(host: LabHost) -> Iterator[None]:
    """New connections to ephemeral ports are dropped, answers to our own are not: what firewalls do."""
    rule = ("-A", "INPUT", "-p", "tcp", "--syn", "--dport", EPHEMERAL, "-j", "DROP")
    command("ip", "netns", "exec", host.namespace, "iptables", "-w", *rule)
    yield
    host.heal()


@contextlib.contextmanager
def full_disk(host: LabHost) -> Iterator[None]:
    host.run(["mkdir", "-p", WORKDIRS])
    host.small_disk(WORKDIRS)
    host.fill_disk(WORKDIRS)
    yield
    host.run(["umount", WORKDIRS], user="root")


@contextlib.contextmanager
def no_inodes(host: LabHost) -> Iterator[None]:
    host.run(["mkdir", "-p", WORKDIRS])
    host.small_disk(WORKDIRS, size="2g", inodes=50)
    yield
    host.run(["umount", WORKDIRS], user="root")


@contextlib.contextmanager
def taken_ports(host: LabHost) -> Iterator[None]:
    argv = host.argv(["python3", "-c", LISTEN])
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout
        assert squatter.stdout.readline() == "listening\n"
        yield
        squatter.kill()
    wait_until("the ports are free", lambda: not host.leftovers("29500"))


@contextlib.contextmanager
def stray_rank(host: LabHost) -> Iterator[None]:
    """What a torchrun by hand has left."""
    worker = ["env", "RANK=1", "LOCAL_RANK=0", "WORLD_SIZE=4", "sh", "-c", "echo there; exec sleep 600"]
    with subprocess.Popen(host.argv(worker), stdout=subprocess.PIPE, text=True) as left:
        assert left.stdout
        assert left.stdout.readline() == "there\n"
        yield
        left.kill()
    wait_until("it is gone", lambda: not host.leftovers("sleep"))


@contextlib.contextmanager
def stale_login(host: LabHost) -> Iterator[None]:
    kept = host.read("/home/trainer/.bashrc")
    host.write(".bashrc", "export MASTER_ADDR=10.1.1.1\necho welcome\n")
    yield
    host.write(".bashrc", kept)


@contextlib.contextmanager
def cable_out(host: LabHost) -> Iterator[None]:
    host.cut()
    yield
    host.heal()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """How it is put in, which checks are asked, and what they say of the sick host (message: words in it)."""

    inject: Callable[[LabHost], AbstractContextManager[None]]
    only: str
    said: tuple[tuple[str, str, str], ...]


PORTS = f"gpu00 → {SICK}, gpu02 → {SICK} on {ADDRESSES}: "
OUT = f"{SICK} → gpu00, {SICK} → gpu02 on {ADDRESSES}: "
FAULTS = [
    Fault(inject=clock, only="clock", said=(("clock", "fail", "its clock is 60 s ahead of the others'"),)),
    Fault(inject=small_shm, only="shm", said=(("shm", "fail", "only 64 MiB are free in /dev/shm"),)),
    Fault(inject=loopback_name, only="Network", said=(("own-name", "warn", f"{SICK} means 127.0.1.1 there"),)),
    Fault(
        inject=dead_name_server,
        only="Network",
        said=(
            ("own-name", "warn", f"{SICK} means 127.0.0.1 there"),
            ("names", "warn", "gpu00, gpu02: the name cannot be looked up (no answer within 4 s)"),
        ),
    ),
    Fault(inject=dropped_in, only="Network", said=(("ports", "fail", PORTS + "no answer, a firewall drops it"),)),
    Fault(inject=refused_in, only="Network", said=(("ports", "fail", PORTS + "refused, a firewall rejects it"),)),
    Fault(inject=rejected_out, only="Network", said=(("ports", "fail", OUT + "no route, or a firewall rejects it"),)),
    Fault(
        inject=no_new_ephemeral,
        only="Network",
        said=(("network", "fail", f"gpu00 → {SICK}, gpu02 → {SICK} on ephemeral ports: no answer, a firewall drops"),),
    ),
    Fault(
        inject=taken_ports,
        only="Network",
        said=(("ports", "fail", f"no free port in {ADDRESSES}"), ("ports-free", "fail", f"0 of the ports {ADDRESSES}")),
    ),
    Fault(inject=stray_rank, only="stray-ranks", said=(("stray-ranks", "warn", "running: rank 1 of 4 (pid "),)),
    Fault(inject=full_disk, only="Storage", said=(("disk", "fail", f"workdir {WORKDIRS}: 0 MiB free"),)),
    Fault(inject=no_inodes, only="Storage", said=(("disk", "fail", "inodes free"),)),
    Fault(
        inject=stale_login,
        only="SSH,login-environment",
        said=(
            ("login-noise", "warn", "the login shell prints 'welcome'"),
            ("login-environment", "warn", "sets MASTER_ADDR"),
        ),
    ),
    Fault(inject=cable_out, only="connection,shm,network", said=(("connection", "fail", ""),)),
]


def assert_said(found: list[Named], said: tuple[tuple[str, str, str], ...]) -> None:
    assert [one[:2] for one in found] == [one[:2] for one in said], found
    for (_, _, hosts, message), (_, _, words) in zip(found, said, strict=True):
        assert hosts == (SICK,)
        assert words in message


def test_a_clean_cluster_passes_every_check(three: Lab, user: User) -> None:
    assert three.hosts
    assert named(user, "--strict") == (0, [])
    done = user.run("doctor", "--skip", "rehearsal")  # as drawn for people: the job itself has just been rehearsed
    assert done.code == 0
    assert done.lines[-1] == "nothing is wrong"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.inject.__name__)
def test_a_fault_is_named_with_its_host(three: Lab, user: User, fault: Fault) -> None:
    with fault.inject(three.host(SICK)):
        code, found = named(user, "--only", fault.only)
    assert_said(found, fault.said)
    assert code == int(any(verdict == "fail" for _, verdict, _ in fault.said))


def test_once_the_faults_are_gone_nothing_is_named(three: Lab, user: User) -> None:
    assert three.hosts
    assert named(user, "--only", ",".join({fault.only for fault in FAULTS})) == (0, [])


# (what the inventory says of the sick host, the check, words of its message)
INVENTORY: list[tuple[Mapping[str, Any], str, str]] = [
    ({"clusterddp_python": "/nope/python"}, "python", "no /nope/python in the environment"),
    ({"clusterddp_python": "/usr/bin/python3"}, "torch", "ModuleNotFoundError: No module named 'torch'"),
    ({"clusterddp_setup": ["false"]}, "setup", "setup line `false` failed with status 1"),
    ({"clusterddp_gpus": 2}, "gpus", "0 GPUs, clusterddp_gpus says 2"),
    ({"clusterddp_env": {"GLOO_SOCKET_IFNAME": "ib9"}}, "interface", "GLOO_SOCKET_IFNAME=ib9, and it has lo, eth0"),
    ({"ansible_port": 23}, "connection", "connection refused"),
    ({"ansible_python_interpreter": "/nope/python"}, "helper", "no /nope/python on the host"),
    ({"ansible_ssh_common_args": "-o UserKnownHostsFile=/dev/null"}, "host-keys", "key"),
]


@pytest.mark.parametrize(("variables", "name", "words"), INVENTORY, ids=[row[1] for row in INVENTORY])
def test_a_host_that_the_inventory_has_wrong_is_named(
    three: Lab, user: User, variables: Mapping[str, Any], name: str, words: str
) -> None:
    path = three.write_inventory(user.folder / "wrong.yaml", more={SICK: variables})
    code, found = named(user, "-i", str(path), "--only", name)
    assert_said(found, ((name, "fail", words),))
    assert code == 1


def test_one_machine_under_two_names_is_named(three: Lab, user: User) -> None:
    path = three.write_inventory(user.folder / "twice.yaml", twice=[SICK])
    code, found = named(user, "-i", str(path), "--only", "same-machine")
    assert (code, found) == (0, [("same-machine", "warn", (SICK, f"{SICK}b"), "they are one machine")])


def test_several_faults_at_once_are_all_named(three: Lab, user: User) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(small_shm(three.host("gpu00")))
        stack.enter_context(clock(three.host("gpu01")))
        stack.enter_context(dropped_in(three.host("gpu02")))
        code, found = named(user, "--only", "Machines,Network")
    assert code == 1
    assert [(name, hosts) for name, _, hosts, _ in found] == [
        ("clock", ("gpu01",)),
        ("shm", ("gpu00",)),
        ("ports", ("gpu02",)),
    ]


def test_a_live_run_is_told_and_gone_when_it_is_stopped(three: Lab, user: User) -> None:
    user.write("sleeper.py", "import threading\nthreading.Event().wait(600)\n")
    started = user.run("run", "--detach", "--nproc-per-node", "1", "sleeper.py")
    assert started.code == 0, started.err
    run = started.out.strip()
    code, found = named(user, "--only", "live-runs")
    assert code == 0
    ((name, verdict, hosts, message),) = found
    assert (name, verdict, hosts) == ("live-runs", "warn", tuple(host.name for host in three.hosts))
    assert f"run {run} of " in message
    assert named(user, "--only", "live-runs", "--strict") == (1, found)
    assert user.run("stop", run).code == 0
    assert named(user, "--only", "live-runs") == (0, [])
