"""The lab's faults, each beside a control that works."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.lab import LabError
from tests.lab.faults import children
from tests.lab.observe import answer, answer_from, ssh
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeLab
    from tests.lab.host import LabHost

SENT = 1_000_000  # bytes


def _rules(host: LabHost) -> list[str]:
    return subprocess.getoutput(f"ip netns exec {host.namespace} iptables -w -nvxL").splitlines()


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


def test_lost_packets_come_again_and_a_total_loss_is_silence(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    host = lab.hosts[0]
    host.lose(0.1)
    lost = ["0", "0"]
    while "0" in lost:  # few large packets and fewer answers: one more read, until each direction has lost some
        assert ssh(lab, "gpu00", f"head -c {SENT} /dev/zero | wc -c").stdout == f"{SENT}\n"
        lost = [line.split()[0] for line in _rules(host) if "statistic" in line]
        assert len(lost) == 2
    host.lose(1)
    assert answer(host.address) == "silence"
    host.heal()
    assert answer(host.address) == "open"


def test_a_black_hole_swallows_only_what_is_large(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    host = lab.hosts[0]
    read = lab.ssh("gpu00", "echo small; sleep 0.2; head -c 100000 /dev/zero; echo large")
    with subprocess.Popen(read, stdout=subprocess.PIPE, bufsize=0) as client:
        assert client.stdout
        assert client.stdout.read(6) == b"small\n"
        host.black_hole(400)
        assert answer(host.address) == "open"
        with pytest.raises(subprocess.TimeoutExpired):
            client.wait(1)
        host.heal()
        assert client.stdout.read().endswith(b"large\n")


def test_a_connection_is_reset_once_so_many_bytes_have_gone(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    host = lab.hosts[0]
    host.reset_after(100_000)
    assert ssh(lab, "gpu00", "head -c 50000 /dev/zero").returncode == 0
    done = ssh(lab, "gpu00", "head -c 500000 /dev/zero")
    assert done.returncode == 255
    assert len(done.stdout) < 200_000
    wait_until("the other side knows it too", lambda: not children(host.init.pid))
    assert ssh(lab, "gpu00", "echo again").stdout == "again\n"
    host.heal()
    assert len(ssh(lab, "gpu00", "head -c 500000 /dev/zero").stdout) == 500_000


def test_a_name_can_mean_its_own_loopback(make_lab: MakeLab) -> None:
    host, peer = make_lab(2).hosts
    look = ["getent", "ahostsv4", "gpu00"]
    assert host.run(look).stdout.split()[0] == host.address
    host.name_is_loopback()
    assert host.run(look).stdout.split()[0] == "127.0.1.1"
    assert peer.run(look).stdout.split()[0] == host.address
    assert host.run(["getent", "ahostsv4", "gpu01"]).stdout.split()[0] == peer.address
    host.mend_names()
    assert host.run(look).stdout.split()[0] == host.address


def test_a_silent_name_server_holds_a_lookup_up(make_lab: MakeLab) -> None:
    host = make_lab(1).hosts[0]
    look = ["getent", "ahostsv4", "gpu99"]
    assert host.run(look, check=False, timeout=4).returncode == 2
    host.silence_names()
    with pytest.raises(subprocess.TimeoutExpired):
        host.run(look, timeout=4)
    assert host.run(["getent", "ahostsv4", "gpu00"], timeout=4).stdout
    host.mend_names()
    host.heal()
    assert host.run(look, check=False, timeout=4).returncode == 2


def test_a_skewed_clock_is_wrong_for_all_that_comes_through_ssh(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    host = lab.hosts[0]
    ask = "import time; print(time.time(), time.monotonic())"

    def skew(name: str) -> float:
        return float(ssh(lab, name, f"python3 -c '{ask}'").stdout.split()[0]) - time.time()

    host.skew_clock(-300)
    assert -301 < skew("gpu00") < -298
    assert abs(skew("gpu01")) < 2
    watch = f"{ask}; input(); {ask}"
    argv = lab.ssh("gpu00", f"python3 -uc '{watch}'")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as client:
        assert client.stdin
        assert client.stdout
        wall, steady = map(float, client.stdout.readline().split())
        host.skew_clock(600)
        client.stdin.write(b"\n")
        later, still = map(float, client.stdout.readline().split())
    assert 899 < later - wall < 920, "a step moves what runs"
    assert 0 <= still - steady < 20
    host.skew_clock(0)
    assert abs(skew("gpu00")) < 2


def test_a_wait_under_a_skewed_clock_takes_its_time(make_lab: MakeLab) -> None:
    host = make_lab(1).hosts[0]
    host.skew_clock(3600)
    wait = "import threading, time; threading.Event().wait(0.5); time.sleep(0.1); print(time.monotonic())"
    began = time.monotonic()
    host.run(["python3", "-c", wait], timeout=30)
    assert time.monotonic() - began > 0.5


def test_a_process_dies_by_the_number_that_its_host_knows(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    host = lab.hosts[0]
    with subprocess.Popen(lab.ssh("gpu00", "echo $$; exec sleep 1000"), stdout=subprocess.PIPE) as client:
        assert client.stdout
        host.kill(int(client.stdout.readline()))
        assert client.wait(20) == 255
    assert host.leftovers("1000") == []


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
