"""Files passed on from host to host on the lab, over real SSH: who listens where, firewalls, a power cut, a kill."""

from __future__ import annotations

import hashlib
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, nothing_left
from tests.lab import network
from tests.lab.system import command, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.lab import Lab
    from tests.lab.host import LabHost

PLACE = "/tmp/sets"
SIZE = 24 << 20
PORTS = range(29400, 29500)
UPLINK = "40mbit"  # 24 MB to three hosts: 15 s from here alone


@pytest.fixture
def broken(make_lab: MakeLab) -> Lab:
    """Three hosts behind a slow uplink."""
    lab = make_lab(3)
    command(
        "tc", "qdisc", "replace", "dev", network.prefix(lab.number), "root", "tbf", "rate", UPLINK, "burst", "64k",
        "latency", "100ms",
    )  # fmt: skip
    return lab


@pytest.fixture
def user(broken: Lab, tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    user.env["CLUSTERDDP_INVENTORY"] = str(broken.inventory)
    (user.folder / "sets").mkdir(parents=True)
    (user.folder / "sets" / "big.bin").write_bytes(os.urandom(SIZE))
    with nothing_left(broken):
        yield user


def equal(user: User, *hosts: LabHost) -> bool:
    wanted = hashlib.sha256((user.folder / "sets" / "big.bin").read_bytes()).hexdigest()
    return all(host.run(["sha256sum", f"{PLACE}/big.bin"]).stdout.split()[0] == wanted for host in hosts)


def listening(host: LabHost) -> list[str]:
    """Addresses and ports of ``clusterddp_ports`` at which a host listens."""
    found = [line.split()[3] for line in host.run(["ss", "-Htln"]).stdout.splitlines()]
    return [one for one in found if int(one.rpartition(":")[2]) in PORTS]


def test_hosts_pass_files_on_and_a_push_that_was_killed_leaves_no_port_open_and_goes_on(
    broken: Lab, user: User
) -> None:
    walled = broken.hosts[2]
    for direction in ("in", "out"):
        walled.drop("29400:29499", direction=direction)
    with user.start("push", "sets", PLACE) as live:
        live.wait_for("gpu02: reaches no other host", stream="err")
        for host in broken.hosts:
            assert [one.rpartition(":")[0] for one in listening(host)] == [host.address]
        os.kill(live.process.pid, signal.SIGKILL)
    wait_until("no host listens", lambda: not any(listening(host) for host in broken.hosts))
    done = user.run("push", "sets", PLACE)
    assert done.code == 0, done.err
    assert equal(user, *broken.hosts)
    assert not any(listening(host) for host in broken.hosts)
