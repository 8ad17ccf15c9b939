"""The doctor on real hosts: all is well, a fault is put in and named with its host alone, taken out, all is well.

Judgements over made facts: tests/unit/checks/test_engine.py. Faults that a remedy mends as it is typed are named in
test_remedies_checks.py, test_remedies_of_networks.py and ../provision/test_remedies_of_setup.py.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.doctor_cli import SICK, Fault, assert_fault, assert_mended, assert_said, named
from tests.lab.system import command, wait_until
from tests.lean import training_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.cli import User
    from tests.lab import Lab
    from tests.lab.host import LabHost

pytestmark = pytest.mark.lab
ADDRESSES = "29400-29499"
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


def shut_ephemeral(host: LabHost, *target: str) -> None:
    """New connections to ephemeral ports come to this target, answers to our own do not: what firewalls do."""
    rule = ("-A", "INPUT", "-p", "tcp", "--syn", "--dport", EPHEMERAL, "-j", *target)
    command("ip", "netns", "exec", host.namespace, "iptables", "-w", *rule)


@contextlib.contextmanager
def no_new_ephemeral(host: LabHost) -> Iterator[None]:
    shut_ephemeral(host, "DROP")
    yield
    host.heal()


@contextlib.contextmanager
def rejected_ephemeral(host: LabHost) -> Iterator[None]:
    shut_ephemeral(host, "REJECT", "--reject-with", "icmp-host-unreachable")
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


PORTS = f"gpu00 → {SICK}, gpu02 → {SICK} on {ADDRESSES}: "
OUT = f"{SICK} → gpu00, {SICK} → gpu02 on {ADDRESSES}: "
FAULTS = [
    Fault(inject=loopback_name, only="Network", said=(("own-name", "warn", f"{SICK} means 127.0.1.1 there"),)),
    Fault(
        inject=dead_name_server,
        only="Network",
        said=(
            ("own-name", "warn", f"{SICK} means 127.0.0.1 there"),
            ("names", "warn", "gpu00, gpu02: the name cannot be looked up (no answer within 4 s)"),
        ),
    ),
    Fault(inject=refused_in, only="Network", said=(("ports", "fail", PORTS + "refused, a firewall rejects it"),)),
    Fault(inject=rejected_out, only="Network", said=(("ports", "fail", OUT + "no route, or a firewall rejects it"),)),
    Fault(
        inject=no_new_ephemeral,
        only="Network",
        said=(("network", "fail", f"gpu00 → {SICK}, gpu02 → {SICK} on ephemeral ports: no answer, a firewall drops"),),
    ),
    Fault(
        inject=rejected_ephemeral,
        only="Network",
        said=(("network", "fail", f"gpu00 → {SICK}, gpu02 → {SICK} on ephemeral ports: no route, or a firewall"),),
    ),
    Fault(
        inject=taken_ports,
        only="Network",
        said=(("ports", "fail", f"no free port in {ADDRESSES}"), ("ports-free", "fail", f"0 of the ports {ADDRESSES}")),
    ),
    Fault(inject=cable_out, only="connection,shm,network", said=(("connection", "fail", ""),)),
]
TOGETHER = [  # none of them has to do with another
    Fault(
        inject=stale_login,
        only="SSH,login-environment",
        said=(
            ("login-noise", "warn", "the login shell prints 'welcome'"),
            ("login-environment", "warn", "sets MASTER_ADDR"),
        ),
    ),
    Fault(inject=clock, only="Machines", said=(("clock", "fail", "its clock is 60 s ahead of the others'"),)),
    Fault(inject=small_shm, only="Machines", said=(("shm", "fail", "only 64 MiB are free in /dev/shm"),), host="gpu00"),
    Fault(
        inject=dropped_in,
        only="Network",
        said=(("ports", "fail", f"gpu00 → gpu02, {SICK} → gpu02 on {ADDRESSES}: no answer, a firewall drops it"),),
        host="gpu02",
    ),
    Fault(inject=no_inodes, only="Storage", said=(("disk", "fail", "inodes free"),), host="gpu00"),
    Fault(inject=full_disk, only="Storage", said=(("disk", "fail", f"workdir {WORKDIRS}: 0 MiB free"),)),
]


def test_a_clean_cluster_passes_every_check(three: Lab, user: User) -> None:
    assert three.hosts
    assert named(user, "--strict") == (0, [])
    done = user.run("doctor", "--skip", "rehearsal")  # as drawn for people: the job itself has just been rehearsed
    assert done.code == 0
    assert done.lines[-1] == "nothing is wrong"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.inject.__name__)
def test_a_fault_is_named_with_its_host(three: Lab, user: User, fault: Fault) -> None:
    assert_fault(three, user, fault)


def test_several_faults_at_once_are_all_named(three: Lab, user: User) -> None:
    assert_fault(three, user, *TOGETHER)


@pytest.mark.usefixtures("three")
def test_once_the_faults_are_gone_nothing_is_named(user: User) -> None:
    assert_mended(user, *FAULTS, *TOGETHER)


# (what the inventory says of the sick host, the check, words of its message)
INVENTORY: list[tuple[Mapping[str, Any], str, str]] = [
    ({"clusterddp_python": "/nope/python"}, "python", "no /nope/python in the environment"),
    ({"clusterddp_python": "/usr/bin/python3"}, "torch", "ModuleNotFoundError: No module named 'torch'"),
    ({"clusterddp_gpus": 2}, "gpus", "0 GPUs, clusterddp_gpus says 2"),
    ({"ansible_port": 23}, "connection", "connection refused"),
    ({"ansible_ssh_common_args": "-o UserKnownHostsFile=/dev/null"}, "host-keys", "key"),
]


@pytest.mark.parametrize(("variables", "name", "words"), INVENTORY, ids=[row[1] for row in INVENTORY])
def test_a_host_that_the_inventory_has_wrong_is_named(
    three: Lab, user: User, variables: Mapping[str, Any], name: str, words: str
) -> None:
    path = three.write_inventory(user.folder / "wrong.yaml", more={SICK: variables})
    assert_said(named(user, "-i", str(path), "--only", name), (name, "fail", (SICK,), words))
