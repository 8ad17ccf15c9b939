"""What is told of networks, folders and machines between hosts is done as it was printed, and the check passes then."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import User, nothing_left
from tests.integration.doctor_cli import named
from tests.integration.gpus_made import FOLDER, TORCH_ENV, MadeGpus
from tests.lab.system import command
from tests.lean import lean_python, training_python
from tests.own_lab import own_lab
from tests.remedies import remedy, type_line
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab import Lab
    from tests.lab.host import LabHost

pytestmark = pytest.mark.lab
STATE = {"clusterddp_state": "/var/tmp/state"}
DRY = "clusterddp run --dry-run -i i.yaml train.py"
LIMIT = 90  # seconds for a torchrun by hand


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    """Two hosts of our own with two networks and one home."""
    with own_lab(2, shared_home=True, two_networks=True) as lab:
        yield lab


@pytest.fixture
def user(two: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    made = User(tmp_path_factory.mktemp("user"))
    made.write("train.py", "print('trained', flush=True)\n")
    with nothing_left(two):
        yield made


def inventory(two: Lab, user: User, of_all: dict[str, Any], **lab: Any) -> None:
    """Write i.yaml, of both hosts."""
    two.write_inventory(user.folder / "i.yaml", more={**lab.pop("more", {}), "all": {**STATE, **of_all}}, **lab)


def wrong(user: User, check: str) -> list[str]:
    """The names of the checks that complain, of those asked; a job by hand would take the first card, which is true."""
    return [name for name, *_ in named(user, "-i", "i.yaml", "--only", check, "--skip", "card-choice")[1]]


def said(user: User, check: str) -> str:
    return user.run("doctor", "-i", "i.yaml", "--only", check).out


def iptables(host: LabHost, *words: str) -> None:
    command("ip", "netns", "exec", host.namespace, "iptables", "-w", *words)


RULE = remedy(
    "checks/catalog/network.py",
    "let TCP through between the hosts on {}, or set clusterddp_interface to a network that does",
)


def test_a_firewall_that_lets_the_told_ports_through_or_another_network_is_enough(two: Lab, user: User) -> None:
    """The firewall lets nothing else in but SSH."""
    host = two.host("gpu01")
    inventory(two, user, {"clusterddp_interface": "eth0"})
    try:
        iptables(host, "-A", "INPUT", "-i", "eth0", "-p", "tcp", "--syn", "!", "--dport", "22", "-j", "DROP")
        (ports,) = RULE.printed(said(user, "network"))
        inventory(two, user, {"clusterddp_interface": "eth1"})
        assert wrong(user, "network,ports") == []
        inventory(two, user, {"clusterddp_interface": "eth0"})
        for one in ports.split(", "):
            iptables(host, "-I", "INPUT", "-p", "tcp", "--dport", one.replace("-", ":"), "-j", "ACCEPT")
        assert wrong(user, "network,ports") == []
    finally:
        host.heal()


NO_NETWORK = remedy("facts/network.py", "set clusterddp_address or clusterddp_interface on each")


@pytest.mark.parametrize("by", ["doctor", "run"])
def test_hosts_without_a_common_network_have_one_once_it_is_named(two: Lab, user: User, by: str) -> None:
    """A container's bridge has the same address on both, so it leads from none to the other."""
    need_torch()
    inventory(two, user, {"clusterddp_interface": "docker0"})
    try:
        for host in two.hosts:
            command("ip", "-n", host.namespace, "link", "add", "docker0", "type", "veth", "peer", "name", "inside")
            command("ip", "-n", host.namespace, "addr", "add", "172.17.0.1/16", "dev", "docker0")
            for card in ("docker0", "inside"):
                command("ip", "-n", host.namespace, "link", "set", card, "up")
        assert NO_NETWORK.found(said(user, "network") if by == "doctor" else type_line(user, DRY).err)
        inventory(two, user, {"clusterddp_interface": "eth1"})
        assert wrong(user, "network") == []
        own = {host.name: {"clusterddp_address": host.nics[1].address} for host in two.hosts}
        inventory(two, user, {}, more=own)
        done = type_line(user, DRY)
        assert done.code == 0, done.err
        assert f"--rdzv-endpoint {two.hosts[0].nics[1].address}:" in done.out
    finally:
        for host in two.hosts:
            command("ip", "-n", host.namespace, "link", "del", "docker0", check=False)


NO_ROUTE = remedy(
    "runs/view/known_messages/jobs.py",
    "set clusterddp_address or clusterddp_interface to the network that all nodes share",
)
REDUCES = """
import datetime, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
one = torch.ones(1)
dist.all_reduce(one)
print("reduced", one.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_a_job_between_networks_without_a_route_runs_in_the_one_that_the_hosts_share(two: Lab, user: User) -> None:
    """The second host reaches the first one's address, so they meet; a worker of the first dials the second's."""
    need_torch()
    first, second = two.hosts
    torch = {"clusterddp_python": training_python()}
    shared, other = first.nics[1].address, second.nics[0].address
    user.write("train.py", REDUCES)
    apart = {first.name: {"clusterddp_address": shared}, second.name: {"clusterddp_address": other}}
    inventory(two, user, torch, more=apart)
    way = ("route", "add", "unreachable", f"{other}/32")
    try:
        command("ip", "-n", first.namespace, *way)
        failed = type_line(user, "clusterddp run --no-doctor -i i.yaml train.py")
        assert failed.code == 1, failed.err
        assert NO_ROUTE.found(failed.err)
        assert "No route to host" in failed.err.splitlines()[-1]
        inventory(two, user, {**torch, "clusterddp_interface": "eth1"})
        done = type_line(user, "clusterddp run -i i.yaml train.py")
        assert (done.code, done.out.count("reduced 2.0")) == (0, 2), done.err
        own = {host.name: {"clusterddp_address": host.nics[1].address} for host in two.hosts}
        inventory(two, user, torch, more=own)
        assert wrong(user, "network") == []
    finally:
        command("ip", "-n", first.namespace, "route", "del", *way[2:], check=False)


ELECTED = remedy(
    "checks/catalog/library_defaults.py",
    "by hand: --rdzv-conf is_host=1 on the first host, is_host=0 on the others; or mend /etc/hosts",
)


def test_a_torchrun_by_hand_meets_with_the_told_options(two: Lab, user: User) -> None:
    """Both ways are taken: the options, and the name mended."""
    need_torch()
    first, second = two.hosts
    inventory(two, user, {})
    try:
        first.name_is_loopback()
        told = ELECTED.found(said(user, "host-election"))[0]
        options = re.findall(r"is_host=\d", told)
        assert options == ["is_host=1", "is_host=0"]
        words = [lean_python(), "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        words += ["--rdzv-id", "by-hand", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first.name}:29700"]
        first.write("by_hand.py", "import os\nprint('rank', os.environ['RANK'], flush=True)\n")  # in the one home
        agents = []
        try:
            for host, option in zip((first, second), options, strict=True):
                argv = host.argv([*words, "--rdzv-conf", option, "by_hand.py"])
                agents.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd="/"))
            heard = [agent.communicate(timeout=LIMIT)[0] for agent in agents]
        finally:
            for agent in agents:
                agent.kill()
                agent.wait(LIMIT)
        assert sorted("".join(heard).split("\n")) == ["", "rank 0", "rank 1"]
        first.mend_names()
        assert wrong(user, "host-election") == []
    finally:
        first.mend_names()


OWN_STATE = remedy(
    "checks/catalog/storage.py",
    "set clusterddp_state to a folder on a local disk of each host, such as /var/tmp/clusterddp-NAME",
)
OWN_WORKDIR = remedy(
    "checks/catalog/storage.py",
    "set clusterddp_workdir to a folder of each host's own, or to one on a network file system",
)


def test_hosts_with_one_home_have_folders_of_their_own_where_they_are_told(two: Lab, user: User) -> None:
    inventory(two, user, {"clusterddp_state": None})
    found = said(user, "shared")
    assert "! shared: gpu00, gpu01: they have one state folder" in found
    state = OWN_STATE.found(found)[0].rpartition(" ")[2].replace("NAME", "trainer")
    inventory(two, user, {"clusterddp_state": state})
    found = said(user, "shared")
    assert OWN_WORKDIR.found(found)
    assert "! shared: gpu00, gpu01: they have one workdir" in found
    assert "they have one state folder" not in found
    inventory(two, user, {"clusterddp_state": state, "clusterddp_workdir": "/var/tmp/work"})
    assert wrong(user, "shared") == []
    assert two.hosts[0].run(["find", ".", "-name", ".clusterddp-*-*"]).stdout == ""  # the marks by which they are found


OTHER_DISK = remedy(
    "checks/catalog/storage.py",
    "see what else uses that disk (`iostat -x 1`), or set clusterddp_workdir and clusterddp_state to another",
)


def test_folders_on_a_slow_disk_are_put_on_another(two: Lab, user: User) -> None:
    inventory(two, user, {"clusterddp_state": None})
    host = two.host("gpu01")
    host.slow_disk()
    try:
        found = said(user, "write-time")
        assert OTHER_DISK.found(found)
        assert "! write-time: gpu01: a file of 4 KiB was on disk after " in found
        assert "s in workdir /home/trainer/clusterddp" in found
        inventory(two, user, {"clusterddp_workdir": "/var/tmp/work"})
        assert wrong(user, "write-time") == []
    finally:
        host.mend_disk()


TWICE = "remove one of them from the inventory"
TWICE_GPUS = remedy("checks/catalog/machine.py", ", or give each its own clusterddp_gpus")


def test_a_machine_under_two_names_has_one_or_gives_each_its_own_gpus(two: Lab, user: User) -> None:
    inventory(two, user, {}, twice=["gpu01"])
    without = said(user, "same-machine")
    assert "! same-machine: gpu01, gpu01b: they are one machine" in without
    assert TWICE in without
    assert "clusterddp_gpus" not in without  # it has none to give
    inventory(two, user, {})
    assert wrong(user, "same-machine") == []


def test_nodes_of_one_machine_with_gpus_are_given_their_own(two: Lab, user: User) -> None:
    host = two.host("gpu01")
    made = MadeGpus(host)
    try:
        inventory(two, user, {**TORCH_ENV}, hosts=["gpu01"], twice=["gpu01"])
        told = said(user, "same-machine")
        assert TWICE in told
        assert TWICE_GPUS.found(told)
        own = {"gpu01": {"clusterddp_gpus": [0]}, "gpu01b": {"clusterddp_gpus": [1]}}
        inventory(two, user, {**TORCH_ENV}, hosts=["gpu01"], twice=["gpu01"], more=own)
        assert wrong(user, "same-machine") == []
        shown = type_line(user, DRY)
        assert re.findall(r"CUDA_VISIBLE_DEVICES=(.*)", shown.out) == made.uuids, shown.err
    finally:
        host.run(["rm", "-r", FOLDER, "/usr/local/bin/nvidia-smi", "/usr/local/bin/journalctl"], user="root")
