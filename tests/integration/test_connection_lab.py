"""Connections to machines that vanish, and through a real bastion."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from clusterddp import inventory
from clusterddp.errors import UnreachableError
from clusterddp.hosts.ssh import Connector
from tests.integration.throwaway_sshd import home

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.hosts.ssh import BytePipe
    from tests.conftest import MakeLab

__all__ = ["home"]  # fixture

SSH = ["fabric", "openssh"]


def said(pipe: BytePipe) -> bytes:
    return b"".join(iter(lambda: pipe.read(4096), b""))


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
        assert time.monotonic() - began < 4
        connector.close()


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("proxy", ["jump", "command", "config"])
def test_a_bastion_leads_to_the_hosts_behind_it(make_lab: MakeLab, proxy: str, tmp_path: Path) -> None:
    lab = make_lab(2, bastion=True)
    for transport in SSH:
        more = {"all": {"clusterddp_transport": transport}}
        path = lab.write_inventory(tmp_path / f"{transport}.yaml", proxy=proxy, more=more)  # type: ignore[arg-type]
        connector = Connector()
        pipes = [connector.open(entry, "hostname") for entry in inventory.load(path).hosts]
        assert [said(pipe) for pipe in pipes] == [b"gpu00\n", b"gpu01\n"]
        connector.close()
