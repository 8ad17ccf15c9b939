"""The lab: its hosts are machines of their own, and leave no trace."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.lab import HostOptions, Lab, LabError, network, registry
from tests.lab.observe import ssh
from tests.lab.system import ProcessId, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeLab


PROJECT = Path(__file__).parents[3]


def test_real_ssh_reaches_every_host_under_its_name_as_the_plain_user(lab: Lab) -> None:
    for host in lab.hosts:
        done = ssh(lab, host.name, "hostname; id -un; echo $HOME")
        assert (done.returncode, done.stdout.split()) == (0, [host.name, "trainer", "/home/trainer"])


def test_the_inventory_alone_is_enough_for_ssh(lab: Lab) -> None:
    inventory = yaml.safe_load(lab.inventory.read_text())["all"]
    shared = inventory["vars"]
    argv = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-i", shared["ansible_ssh_private_key_file"]]
    argv += shared["ansible_ssh_common_args"].split()
    argv += ["-l", shared["ansible_user"], inventory["hosts"]["gpu02"]["ansible_host"], "hostname"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "gpu02\n"


def test_the_plain_user_can_run_the_interpreter_the_inventory_names(lab: Lab) -> None:
    python = yaml.safe_load(lab.inventory.read_text())["all"]["vars"]["clusterddp_python"]
    done = ssh(lab, "gpu00", f"{python} -c 'import sys, typing_extensions; print(sys.prefix)'")
    assert (done.stdout, done.stderr) == (f"{Path(python).parents[1]}\n", "")
    done = ssh(lab, "gpu00", f"{sys.executable} -c 'import yaml, sys; print(sys.prefix)'")
    assert (done.stdout, done.stderr) == (f"{sys.prefix}\n", "")


def test_disks_processes_and_tmp_are_each_hosts_own(lab: Lab) -> None:
    first, second = lab.hosts[:2]
    for path in ("/home/trainer/here", "/tmp/here", "/dev/shm/here", "/var/tmp/here"):
        first.write(path, "x")
        assert first.run(["test", "-e", path], check=False).returncode == 0
        assert second.run(["test", "-e", path], check=False).returncode == 1
        assert not Path(path).exists()
        first.run(["rm", path])
    assert str(os.getpid()) not in first.run(["ls", "/proc"]).stdout.split()
    assert first.run(["cat", "/proc/1/comm"]).stdout == "sshd\n"
    assert first.run(["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]


def test_hosts_reach_each_other_by_name(lab: Lab) -> None:
    code = "import socket; print(socket.create_connection(('gpu03', 22), 5).recv(3).decode())"
    assert lab.host("gpu01").run(["python3", "-c", code]).stdout == "SSH\n"


def test_a_command_on_a_host_arrives_untouched(lab: Lab) -> None:
    words = ["a b", "$(id)", "'\"", "two\nlines", "-n", "é"]
    done = lab.host("gpu00").run(["printf", "%s\\0", *words], env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.split("\0")[:-1] == words


def test_processes_with_a_marker_are_seen_with_command_line_and_environment(lab: Lab) -> None:
    host = lab.host("gpu03")
    argv = host.argv(["sleep", "1000"], env={"CLUSTERDDP_RUN_ID": "marked-run"})
    with subprocess.Popen(argv) as process:
        wait_until("sleep runs", lambda: any(p.cmdline[0] == "sleep" for p in host.leftovers("marked-run")))
        found = [p for p in host.leftovers("marked-run") if p.cmdline == ("sleep", "1000")]
        assert [p.environ["CLUSTERDDP_RUN_ID"] for p in found] == ["marked-run"]
        os.kill(found[0].pid, signal.SIGKILL)
        process.wait()
    wait_until("nothing is left", lambda: not host.leftovers("marked-run"))


def test_a_host_that_cannot_boot_is_an_error_with_its_last_words(make_lab: MakeLab) -> None:
    with pytest.raises(LabError, match=r"gpu00 died while booting: .*Nonsense"):
        make_lab(1, options=HostOptions(sshd=("Nonsense yes",)))


@pytest.mark.usefixtures("make_lab")
def test_without_root_the_labs_tests_are_skipped_with_the_reason() -> None:
    test = "tests/integration/lab/test_lab.py::test_hosts_reach_each_other_by_name"
    argv = ["unshare", "--user", "--map-user=1000", sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert "1 skipped" in done.stdout
    assert "lab: the lab needs root" in done.stdout


def test_stop_removes_every_trace_and_twice_is_no_error(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    number, folder, init = lab.number, lab.folder, lab.hosts[0].init
    with subprocess.Popen(lab.hosts[0].argv(["sleep", "1000"])) as process:
        lab.stop()
        lab.stop()
        assert process.wait(20) != 0
    assert not init.alive
    assert not folder.exists()
    assert network.remains(number) == []
    links = subprocess.getoutput("ip -br link; ip route")
    assert not re.search(rf"\b{network.prefix(number)}\b", links), links  # cddp1, not cddp11


def test_a_lab_of_a_killed_owner_is_swept_by_the_next(make_lab: MakeLab) -> None:
    code = (
        "import json, os, signal; from tests.lab import Lab; lab = Lab(1).start(); init = lab.hosts[0].init;"
        "print(json.dumps([lab.number, init.pid, init.start_ticks]), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=False)
    number, pid, ticks = json.loads(done.stdout)
    init = ProcessId(pid=pid, start_ticks=ticks)
    assert init.alive
    assert registry.owner(number) == "dead"
    make_lab(1)
    assert not init.alive


@pytest.mark.usefixtures("make_lab")
def test_people_can_start_a_lab_and_take_it_down() -> None:
    lab_command = [sys.executable, "-m", "tests.lab"]
    up = subprocess.run([*lab_command, "up", "--hosts", "1"], cwd=PROJECT, capture_output=True, text=True, check=True)
    inventory = Path(up.stdout.strip())
    number = inventory.parent.name
    assert yaml.safe_load(inventory.read_text())["all"]["hosts"]["gpu00"]
    listed = subprocess.run([*lab_command, "list"], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert f"{number}\tkept\t{inventory.parent}" in listed.stdout.splitlines()
    subprocess.run([*lab_command, "down", number], cwd=PROJECT, check=True, capture_output=True)
    assert not inventory.exists()
    assert network.remains(int(number)) == []
