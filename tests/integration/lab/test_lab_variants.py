"""The lab's variants: shells, homes, networks, limits, inventories."""

from __future__ import annotations

import socket
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.lab import HostOptions
from tests.lab.observe import answer, answer_from, ssh
from tests.lab.system import ssh_banner

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.lab import Lab


def test_unknown_hosts_have_an_empty_known_hosts(make_lab: MakeLab) -> None:
    lab = make_lab(1, known=False)
    assert (lab.folder / "known_hosts").read_text() == ""
    assert "Host key verification failed" in ssh(lab, "gpu00", "true").stderr


def test_low_limits_hold_for_what_comes_through_ssh(make_lab: MakeLab) -> None:
    lab = make_lab(1, options=HostOptions(limits={"nofile": 77}, max_sessions=1))
    assert ssh(lab, "gpu00", "ulimit -n").stdout == "77\n"


def test_a_low_max_startups_turns_newcomers_away(make_lab: MakeLab) -> None:
    lab = make_lab(1, options=HostOptions(max_startups="1:100:1"))
    address = lab.hosts[0].address
    with socket.create_connection((address, 22), timeout=20) as first:
        assert first.recv(3) == b"SSH"
        assert not ssh_banner(address, timeout=20).startswith("SSH-")


@pytest.mark.parametrize("shell", ["bash", "csh", "fish"])
def test_a_noisy_login_shell_prints_before_the_command(make_lab: MakeLab, shell: str) -> None:
    lab = make_lab(1, host={"gpu00": HostOptions(shell=shell, noisy=True)})
    done = ssh(lab, "gpu00", "exec /bin/sh -c 'echo $((1+1))'")
    assert done.stdout.splitlines() == ["Welcome to the cluster. Maintenance on Sunday; {} $HOME is nearly full.", "2"]
    assert "noisy rc file" in done.stderr
    assert lab.hosts[0].run(["getent", "passwd", "trainer"]).stdout.strip().endswith(f"/{shell}")


def test_a_shared_home_is_one_folder_on_all_hosts(make_lab: MakeLab) -> None:
    lab = make_lab(2, shared_home=True)
    lab.hosts[0].write("file", "shared")
    assert ssh(lab, "gpu01", "cat file").stdout == "shared"
    lab.hosts[0].power_off()
    lab.hosts[0].boot()
    assert lab.hosts[0].read("/home/trainer/file") == "shared"


def test_a_second_network_joins_only_the_hosts_that_have_it(make_lab: MakeLab) -> None:
    lab = make_lab(3, two_networks=("gpu00", "gpu01"))
    first, second, third = lab.hosts
    assert [len(host.nics) for host in lab.hosts] == [2, 2, 1]
    inner = second.nics[1].address
    assert first.run(["getent", "hosts", "gpu01-1"]).stdout.split()[0] == inner
    assert answer_from(first, inner) == "open"
    assert answer(inner) != "open"
    assert answer_from(third, inner) == "ENETUNREACH"
    second.cut("eth1")
    assert [answer_from(first, inner), answer_from(first, second.address)] == ["silence", "open"]


def test_behind_a_bastion_only_the_jump_leads_to_the_hosts(make_lab: MakeLab) -> None:
    lab = make_lab(2, bastion=True)
    assert answer(lab.hosts[1].address) == "EHOSTUNREACH"
    assert ssh(lab, "gpu01", "hostname").stdout == "gpu01\n"
    assert ssh(lab, "bastion", "hostname").stdout == "bastion\n"
    shared = yaml.safe_load(lab.inventory.read_text())["all"]["vars"]
    assert shared["ansible_ssh_common_args"].endswith(f"-o ProxyJump=trainer@{lab.machines[-1].address}")
    lab.hosts[1].power_off()
    lab.hosts[1].boot()
    assert ssh(lab, "gpu01", "hostname").stdout == "gpu01\n"


def test_a_proxy_command_in_the_inventory_is_complete(make_lab: MakeLab) -> None:
    lab = make_lab(1, bastion=True)
    text = yaml.safe_load(lab.inventory_text(proxy="command"))["all"]["vars"]["ansible_ssh_common_args"]
    key = lab.folder / "id_ed25519"
    line = f"ssh -F none -o BatchMode=yes -i {key} {text} trainer@{lab.hosts[0].address} hostname"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("gpu00\n", "")


def test_inventories_can_be_varied(lab: Lab, tmp_path: Path) -> None:
    path = lab.write_inventory(
        tmp_path / "inventory.yaml",
        hosts=("gpu02", "gpu00"),
        twice=("gpu00",),
        more={"gpu00b": {"clusterddp_nproc": 2}, "all": {"ansible_user": "other"}},
    )
    hosts = yaml.safe_load(path.read_text())["all"]
    address = lab.host("gpu00").address
    assert list(hosts["hosts"]) == ["gpu02", "gpu00", "gpu00b"]
    assert hosts["hosts"]["gpu00b"] == {"ansible_host": address, "clusterddp_nproc": 2}
    assert hosts["vars"]["ansible_user"] == "other"


def test_several_users_have_the_same_uid_everywhere(make_lab: MakeLab) -> None:
    lab = make_lab(2, users=("alice", "bob"))
    uids = {host.run(["id", "-u"], user="bob").stdout for host in lab.hosts}
    assert uids == {"20002\n"}
    assert ssh(lab, "gpu00", "id -un").stdout == "alice\n"
