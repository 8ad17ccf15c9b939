"""Fabric tasks over a connection of the caller's, on a real host."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest
from fabric import Config, Connection

from clusterddp import InventoryError, UsageError, tasks

if TYPE_CHECKING:
    from tests.lab import Lab


def test_tasks_work_over_a_connection_that_stays_open(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    host = lab.hosts[0]
    home = lab.folder / "tasks-home" / ".ssh"
    home.mkdir(parents=True, exist_ok=True)
    (home / "known_hosts").write_text((lab.folder / "known_hosts").read_text())
    (home / "config").write_text(
        f"Host {host.name}\n HostName {host.address}\n"
        f" User {host.users[0].name}\n IdentityFile {lab.folder}/id_ed25519\n"
    )
    monkeypatch.setenv("HOME", str(home.parent))
    with Connection(host.name) as connection:
        facts = tasks.facts(connection, python=sys.executable)
        assert facts.hostname == host.name
        assert all(node["host"] == host.name for node in tasks.runs(connection))
        with tasks.host(connection) as opened:  # runs there know it by the name it was called by
            assert (opened.name, opened.entry.address) == (host.name, host.address)
        assert connection.is_connected


def test_connections_that_differ_by_port_or_user_alone_are_refused() -> None:
    for pair in (("127.0.0.1:2201", "127.0.0.1:2202"), ("alice@gpu00", "bob@gpu00")):
        with pytest.raises(UsageError, match=r"^two connections are to [\w.]+; give each host a name of its"):
            tasks.cluster([Connection(one) for one in pair])


def test_a_connection_that_is_given_twice_is_one_host() -> None:
    with tasks.cluster([Connection(one) for one in ("gpu00", "gpu01", "gpu00")]) as cluster:
        assert [entry.name for entry in cluster.inventory.hosts] == ["gpu00", "gpu01"]
    behind = [Connection("10.0.0.5", gateway=Connection(one)) for one in ("east", "west")]
    with pytest.raises(UsageError, match="two connections are to"):
        tasks.cluster(behind)


def test_what_is_said_of_hosts_is_read_as_in_an_inventory() -> None:
    said = {"setup": "module load cuda\nulimit -n 4096", "env": {"OMP_NUM_THREADS": 8}, "ports": (29500, 29999)}
    said["address"] = "10.0.0.5"  # clusterddp_address: the data's, while the connection goes where it went
    config = Config({"clusterddp": said})  # its mappings are no dicts
    with tasks.cluster(Connection("gpu00"), **dict(config["clusterddp"])) as cluster:
        (entry,) = cluster.inventory.hosts
    assert entry.setup == ("module load cuda", "ulimit -n 4096")
    assert (entry.env, entry.ports) == ({"OMP_NUM_THREADS": "8"}, (29500, 29999))
    assert (entry.address, entry.data_address) == ("gpu00", "10.0.0.5")
    for wrong, message in (
        ({"pyton": "x"}, "'clusterddp_pyton' is not a variable of clusterddp; did you mean clusterddp_python?"),
        ({"nproc": "two"}, "variables of gpu00:1:clusterddp_nproc: must be auto or a number from 1 to 1024, got 'two'"),
    ):
        with pytest.raises(InventoryError, match=re.escape(message)):
            tasks.cluster(Connection("gpu00"), **wrong)
