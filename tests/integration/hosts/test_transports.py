"""The same job over every way to a host, and on hosts of every kind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import Done, User, local_processes, nothing_left
from tests.lab import HostOptions
from tests.lab.system import wait_until
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab

need_torch()
pytestmark = pytest.mark.torch

TELLS = """
import json, os, socket, sys
names = ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
print(json.dumps([socket.gethostname(), [os.environ.get(name) for name in names], sys.argv[1:]]), flush=True)
"""
ARGUMENTS = ("it's", '"x"', "$(id)", "a\nb", "")


@pytest.fixture
def user(tmp_path: Path) -> User:
    user = User(tmp_path)
    user.write("tells.py", TELLS)
    return user


@pytest.fixture
def _with_inventory(user: User) -> None:
    """No `up`: each command finds out all that it needs."""
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"


def told(done: Done) -> dict[tuple[int, str, int], Any]:
    """What each worker told: (rank, host, local rank) → hostname, addresses; the arguments have arrived."""
    assert done.code == 0, done.out + done.err
    found = {(said.rank, said.host, said.local_rank): json.loads(said.text) for said in done.workers}
    assert all(words == list(ARGUMENTS) for _, _, words in found.values())
    return {place: [hostname, *addresses] for place, (hostname, addresses, _) in found.items()}


TWO = {(0, "gpu00", 0), (1, "gpu01", 0)}


@pytest.mark.parametrize("transport", ["fabric", "openssh"])
def test_through_a_jump_host(make_lab: MakeLab, user: User, transport: str) -> None:
    lab = make_lab(2, bastion=True)
    lab.write_inventory(user.folder / "inventory.yaml", more={"all": {"clusterddp_transport": transport}})
    user.up(user.folder / "inventory.yaml")
    with nothing_left(lab):
        assert set(told(user.run("run", "tells.py", *ARGUMENTS))) == TWO


def test_on_this_machine_with_nothing_set_up(user: User) -> None:
    done = user.run("run", "tells.py", *ARGUMENTS)
    assert set(told(done)) == {(0, "local0", 0), (1, "local1", 0)}
    assert done.notes[0].startswith("cluster: none configured, 2 nodes on this machine")
    wait_until("nothing of it is left", lambda: not local_processes(str(user.home)))


@pytest.mark.usefixtures("_with_inventory")
def test_hosts_with_other_login_shells_that_chatter(make_lab: MakeLab, user: User) -> None:
    shells = {f"gpu0{number}": HostOptions(shell=shell, noisy=True) for number, shell in enumerate(("csh", "fish"))}
    lab = make_lab(2, host=shells)
    lab.write_inventory(user.folder / "inventory.yaml")
    with nothing_left(lab):
        done = user.run("run", "tells.py", *ARGUMENTS)
    assert set(told(done)) == TWO
    for host in shells:
        assert any(note.startswith(f"{host}: its login shell prints ") for note in done.notes), done.err


@pytest.mark.usefixtures("_with_inventory")
def test_hosts_that_share_a_home_and_one_that_is_two_nodes(make_lab: MakeLab, user: User) -> None:
    lab = make_lab(2, shared_home=True)
    lab.write_inventory(user.folder / "inventory.yaml", twice=["gpu01"])
    with nothing_left(lab):
        done = user.run("run", "tells.py", *ARGUMENTS)
    found = told(done)
    assert "gpu01, gpu01b: they are one machine" in done.notes
    assert [place[0] for place in sorted(found)] == [0, 1, 2]
    assert {place[1]: found[place][0] for place in found} == {"gpu00": "gpu00", "gpu01": "gpu01", "gpu01b": "gpu01"}
    status = user.status(done.run)
    assert sorted(rank for host in status["hosts"] for rank in host["ranks"]) == [0, 1, 2]
    assert {host["name"]: host["ranks"] for host in status["hosts"]} == {place[1]: [place[0]] for place in found}
    again = user.run("logs")
    assert sorted(said.rank for said in again.workers) == [0, 1, 2]


@pytest.mark.usefixtures("_with_inventory")
def test_the_network_that_all_nodes_share_carries_the_job(make_lab: MakeLab, user: User) -> None:
    lab = make_lab(2, two_networks=True)
    first, second = ([nic.address for nic in host.nics] for host in lab.hosts)
    lab.write_inventory(user.folder / "inventory.yaml")
    planned = user.run("run", "--dry-run", "tells.py").lines
    assert [line for line in planned if "PET_LOCAL_ADDR" in line] == [
        f"export PET_LOCAL_ADDR={address}" for address in (first[0], second[0])
    ]
    lab.write_inventory(user.folder / "inventory.yaml", more={"all": {"clusterddp_interface": "eth1"}})
    with nothing_left(lab):
        found = told(user.run("run", "tells.py", *ARGUMENTS))
    addresses = [first[1], "eth1", "=eth1"]
    assert found == {(0, "gpu00", 0): ["gpu00", *addresses], (1, "gpu01", 0): ["gpu01", *addresses]}
