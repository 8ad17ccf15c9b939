"""Connections to machines that vanish, and through a real bastion."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp import inventory
from clusterddp.errors import UnreachableError
from clusterddp.hosts import client, large_packets
from clusterddp.hosts.ssh import Connector
from tests.integration.throwaway_sshd import SSH, read_all
from tests.lab import network

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab


@pytest.mark.usefixtures("home")
def test_a_black_hole_is_left_within_the_timeout(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    lab.hosts[0].cut()
    for transport in SSH:
        more = {"all": {"clusterddp_transport": transport}}
        (entry,) = inventory.load(lab.write_inventory(more=more)).hosts
        connector = Connector(connect_timeout=2)
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=f"gpu00: .*({lab.hosts[0].address}.*(2 s|timed out)|No route)"):
            connector.open(entry, "true")
        assert time.monotonic() - began < 60  # without a limit the kernel gives up after two minutes
        connector.close()


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("transport", "largest"), [("fabric", 1500), ("openssh", 2000)])  # its login takes larger ones
def test_a_way_that_swallows_large_packets_is_told_with_their_size(
    make_lab: MakeLab, transport: str, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HANDSHAKE_TIMEOUT", 4.0)
    lab = make_lab(2)
    network.set_mtu(lab.number, tuple(host.nics[0] for host in lab.hosts), 9000)
    entries = inventory.load(lab.write_inventory(more={"all": {"clusterddp_transport": transport}})).hosts
    with contextlib.closing(Connector()) as connector:
        lab.hosts[0].black_hole(largest)
        began = time.monotonic()
        with pytest.raises(UnreachableError) as caught:
            client.Host.open(entries[0], connector)
        assert time.monotonic() - began < 4.0 + large_packets.FIRST_TIMEOUT + large_packets.MESSAGE_TIMEOUT
        client.Host.open(entries[1], connector).close()
        lab.hosts[0].heal()
        client.Host.open(entries[0], connector).close()
    assert caught.value.message == (
        "gpu00: the helper did not start within 4 s: "
        "large packets are lost on the way: 1400 bytes come back, 2000 do not"
    )
    assert f"ping -M do -s 2000 {lab.hosts[0].address}" in caught.value.remedy
    assert "ip link" in caught.value.remedy


@pytest.mark.usefixtures("home")
def test_a_host_that_answers_nothing_is_not_said_to_lose_packets(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HANDSHAKE_TIMEOUT", 2.0)
    monkeypatch.setattr(large_packets, "FIRST_TIMEOUT", 1.0)
    lab = make_lab(1)
    lab.hosts[0].write(".profile", "sleep 600\n")
    (entry,) = inventory.load(lab.write_inventory()).hosts
    lab.hosts[0].write(".bashrc", "sleep 600\n")
    with contextlib.closing(Connector()) as connector, pytest.raises(UnreachableError) as caught:
        client.Host.open(entry, connector)
    assert caught.value.message == "gpu00: the helper did not start within 2 s"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("proxy", ["jump", "command", "config"])
def test_a_bastion_leads_to_the_hosts_behind_it(make_lab: MakeLab, proxy: str, tmp_path: Path) -> None:
    lab = make_lab(2, bastion=True)
    for transport in SSH:
        more = {"all": {"clusterddp_transport": transport}}
        path = lab.write_inventory(tmp_path / f"{transport}.yaml", proxy=proxy, more=more)  # type: ignore[arg-type]
        connector = Connector()
        pipes = [connector.open(entry, "hostname") for entry in inventory.load(path).hosts]
        assert [read_all(pipe) for pipe in pipes] == [b"gpu00\n", b"gpu01\n"]
        connector.close()
