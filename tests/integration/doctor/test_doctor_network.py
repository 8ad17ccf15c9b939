"""The doctor's sight of the network on real hosts: what happens to packets, and what a job by hand would choose.

Ways that are shut, names and ports: test_doctor.py. Judgements over made facts:
tests/unit/checks/test_network_quality.py.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.doctor_cli import SICK, Fault, assert_fault, assert_mended, assert_said, named, named_in
from tests.lab.system import command, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.cli import User
    from tests.lab import Lab
    from tests.lab.host import LabHost

pytestmark = pytest.mark.lab
FIRST = "gpu00"
HELLO = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))) as server:
    print("listening", flush=True)
    while True:
        server.accept()[0].sendall(b"hello")
"""


@contextlib.contextmanager
def black_hole(lab: Lab) -> Iterator[None]:
    """Not on the operator's way, or the host would not even be reached."""
    for other in lab.hosts:
        if other.name != SICK:
            lab.host(SICK).black_hole(peer=other.address)
    yield
    lab.host(SICK).heal()


@contextlib.contextmanager
def jumbo_frames(host: LabHost) -> Iterator[None]:
    """A larger MTU on one host: TCP agrees on the smaller of both, nothing vanishes."""
    command("ip", "-n", host.namespace, "link", "set", "eth0", "mtu", "9000")
    yield
    command("ip", "-n", host.namespace, "link", "set", "eth0", "mtu", "1500")


@contextlib.contextmanager
def loss(host: LabHost) -> Iterator[None]:
    """Every tenth packet each way, those that open a connection too."""
    tenth = ("-m", "statistic", "--mode", "nth", "--every", "10", "--packet", "5", "-j", "DROP")
    for chain in ("INPUT", "OUTPUT"):
        command("ip", "netns", "exec", host.namespace, "iptables", "-w", "-A", chain, *tenth)
    yield
    host.heal()


@contextlib.contextmanager
def dead_second_address(host: LabHost) -> Iterator[None]:
    kept = host.read("/etc/hosts")
    host.write("/etc/hosts", f"{kept}fd00::dead gpu00\n", user="root")
    yield
    host.write("/etc/hosts", kept, user="root")


@contextlib.contextmanager
def loopback_name(host: LabHost) -> Iterator[None]:
    """On the first host: a torchrun by hand is given its name or address."""
    host.name_is_loopback()
    yield
    host.mend_names()


@contextlib.contextmanager
def first_hosts_name(host: LabHost) -> Iterator[None]:
    host.run(["hostname", FIRST], user="root")
    yield
    host.run(["hostname", SICK], user="root")


@contextlib.contextmanager
def name_on_another_card(host: LabHost) -> Iterator[None]:
    """The host's own name is the address of a cable between two containers."""
    command("ip", "-n", host.namespace, "link", "add", "veth7", "type", "veth", "peer", "name", "veth8")
    command("ip", "-n", host.namespace, "addr", "add", "172.30.0.1/16", "dev", "veth7")
    for card in ("veth7", "veth8"):
        command("ip", "-n", host.namespace, "link", "set", card, "up")
    kept = host.read("/etc/hosts")
    host.write("/etc/hosts", kept.replace(f"{host.address} ", "172.30.0.1 "), user="root")
    yield
    host.write("/etc/hosts", kept, user="root")
    command("ip", "-n", host.namespace, "link", "del", "veth7")


@contextlib.contextmanager
def listening(host: LabHost, port: int) -> Iterator[None]:
    """Another program that has a port, and says hello to whoever comes."""
    with subprocess.Popen(host.argv(["python3", "-c", HELLO, str(port)]), stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        try:
            assert other.stdout.readline() == "listening\n"
            yield
        finally:
            other.kill()
    wait_until("the port is free", lambda: not host.leftovers(str(port)))


@contextlib.contextmanager
def another_answers(host: LabHost) -> Iterator[None]:
    """What comes to clusterddp_ports is led to another program, as a container's port mapping does."""
    table = ("ip", "netns", "exec", host.namespace, "iptables", "-w", "-t", "nat")
    with listening(host, 39999):
        rule = ("-A", "PREROUTING", "-p", "tcp", "--dport", "29400:29499", "-j", "REDIRECT", "--to-ports", "39999")
        command(*table, *rule)
        yield
        command(*table, "-F")


FAULTS = [
    Fault(
        inject=jumbo_frames, only="Network", said=(("mtu-equal", "warn", "eth0 has an MTU of 9000, most have 1500"),)
    ),
    Fault(
        inject=loss,
        only="Network",
        said=(("loss", "warn", "TCP segments to and from gpu00, gpu02 had to be sent again"),),
    ),
    Fault(
        inject=dead_second_address,
        only="Network",
        said=(("name-addresses", "warn", "gpu00 → fd00::dead (on none of its cards)"),),
    ),
    Fault(
        inject=loopback_name,
        only="host-election",
        said=(("host-election", "warn", "its own name means 127.0.1.1 there (runs of clusterddp pin it)"),),
        host=FIRST,
    ),
    Fault(
        inject=first_hosts_name,
        only="host-election",
        said=(("host-election", "warn", f"takes itself for {FIRST} and "),),
    ),
    Fault(
        inject=name_on_another_card, only="Network", said=(("card-choice", "warn", "gloo by itself would take veth7"),)
    ),
    Fault(
        inject=another_answers,
        only="Network",
        said=(("ports", "fail", "on 29400-29499: another machine or program answers there"),),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.inject.__name__)
def test_a_fault_is_named_with_its_host(three: Lab, user: User, fault: Fault) -> None:
    assert_fault(three, user, fault)


def test_a_port_that_another_program_has_is_passed_over(three: Lab, user: User) -> None:
    with listening(three.host(SICK), 29400):
        assert named(user, "--only", "Network") == (0, [])


def test_a_black_hole_is_named_with_its_host_told_of_every_two_hosts_and_drawn(three: Lab, user: User) -> None:
    names = [host.name for host in three.hosts]
    with black_hole(three):
        told = user.run("doctor", "--json", "--only", "Network")
        rows = [line.split() for line in user.run("doctor", "--only", "black-hole").lines]
    assert_said(named_in(told), ("black-hole", "fail", (SICK,), "small packets pass, large ones vanish"))
    pairs = told.json["pairs"]
    assert [(one["source"], one["target"]) for one in pairs] == [(a, b) for a in names for b in names if a != b]
    for one in pairs:
        sick = SICK in (one["source"], one["target"])
        assert (one["verdict"], one["word"], one["bulk"]) == (
            ("fail", "black hole", False) if sick else ("pass", "ok", True)
        )
        assert one["rtt_ms"] < 1000
    head = rows.index(["from", *names])
    first, sick_row, last = rows[head + 1 : head + 4]
    assert first[:3] == [FIRST, "X", "black_hole"]
    assert sick_row == [SICK, "black_hole", "X", "black", "hole"]
    assert (last[0], last[2:]) == ("gpu02", ["black_hole", "X"])


@pytest.mark.usefixtures("three")
def test_once_the_faults_are_gone_nothing_is_named(user: User) -> None:
    assert_mended(user, *FAULTS)
