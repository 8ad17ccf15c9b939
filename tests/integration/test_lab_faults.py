"""The lab's faults, each beside a control that works. Not covered: clusterddp."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.lab import LabError
from tests.lab.observe import answer, answer_from, ssh
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeLab


def test_a_power_cut_is_silence_and_the_boot_brings_the_disk_back(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    host, peer = lab.hosts
    host.write("kept", "on disk")
    host.write("/tmp/lost", "in memory")
    old = host.init
    with subprocess.Popen(lab.ssh("gpu00", "sleep 1000"), stderr=subprocess.PIPE) as client:
        wait_until("sleep runs", lambda: host.leftovers("1000"))
        host.power_off()
        assert (host.running, host.processes()) == (False, [])
        assert answer(host.address) == "silence"
        assert client.poll() is None, "a dead machine says no goodbye"
        client.kill()
    host.boot()
    assert host.init != old
    assert host.read("/home/trainer/kept") == "on disk"
    assert host.run(["test", "-e", "/tmp/lost"], check=False).returncode == 1
    assert ssh(lab, "gpu00", "hostname").stdout == "gpu00\n"
    assert answer_from(peer, host.address) == "open"


def test_a_cut_cable_is_silence_until_healed_and_the_connection_survives(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    host = lab.hosts[0]
    with socket.create_connection((host.address, 22), timeout=20) as connection:
        connection.recv(100)
        host.cut()
        assert answer(host.address) == "silence"
        assert host.running
        connection.sendall(b"not ssh\r\n")
        host.heal()
        assert connection.recv(100), "sshd's answer arrives after the heal"
    assert answer(host.address) == "open"


def test_dropped_and_rejected_ports_differ_and_leave_others_alone(make_lab: MakeLab) -> None:
    host, peer = make_lab(2).hosts
    host.drop(2201)
    host.reject("2202:2203")
    assert answer(host.address, 2201) == "silence"
    assert [answer(host.address, port) for port in (2202, 2203, 2204)] == ["refused"] * 3
    assert answer(host.address) == "open"
    host.heal()
    assert answer(host.address, 2201) == "refused"
    host.reject(22, direction="out", answer="icmp-host-unreachable")
    assert answer_from(host, peer.address) == "EHOSTUNREACH"
    assert answer(host.address) == "open"


def test_two_hosts_can_be_parted_while_the_operator_reaches_both(make_lab: MakeLab) -> None:
    first, second = make_lab(2).hosts
    first.drop(proto="all", direction="both", peer=second.address)
    assert answer_from(first, second.address) == "silence"
    assert answer_from(second, first.address) == "silence"
    assert [answer(first.address), answer(second.address)] == ["open", "open"]


def test_rate_slows_the_link_down(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    read = "head -c 1500000 /dev/zero"

    def seconds() -> float:
        start = time.monotonic()
        done = subprocess.run(lab.ssh("gpu00", read), stdout=subprocess.DEVNULL, check=False)
        assert done.returncode == 0
        return time.monotonic() - start

    lab.hosts[0].rate("8mbit")
    assert seconds() > 1.2
    lab.hosts[0].heal()
    assert ssh(lab, "gpu00", read).returncode == 0
    assert "tbf" not in subprocess.getoutput(f"tc -n {lab.hosts[0].namespace} qdisc")


def test_a_paused_connection_is_silent_and_open_until_resumed(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    argv = lab.ssh("gpu00", "cat")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as client:
        assert client.stdin
        assert client.stdout
        client.stdin.write(b"one\n")
        assert client.stdout.read(4) == b"one\n"
        lab.hosts[0].pause()
        client.stdin.write(b"two\n")
        with pytest.raises(subprocess.TimeoutExpired):
            client.wait(0.3)
        lab.hosts[0].resume()
        assert client.stdout.read(4) == b"two\n"
        client.stdin.close()
        assert client.wait(20) == 0


def test_a_new_host_key_is_refused_by_ssh(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    lab.hosts[0].new_host_key()
    done = ssh(lab, "gpu00", "true")
    assert done.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_small_disks_run_full_and_out_of_inodes(make_lab: MakeLab) -> None:
    host = make_lab(1).hosts[0]
    host.small_disk("/home/trainer/small", size="256k")
    host.fill_disk("/home/trainer/small")
    with pytest.raises(LabError, match="No space left"):
        host.run(["cp", "/etc/passwd", "small/file"])
    host.small_disk("/srv/few", inodes=2)
    host.run(["touch", "/srv/few/first"])
    with pytest.raises(LabError, match="No space left"):
        host.run(["touch", "/srv/few/second"])
    with pytest.raises(LabError, match="no small disk"):
        host.fill_disk("/home/trainer")
