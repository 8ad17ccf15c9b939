"""The known_hosts files that a host's ssh arguments name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import InventoryError
from clusterddp.hosts.ssh.connector import Connector
from clusterddp.inventory import HostEntry

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def known_hosts(*words: str) -> tuple[Path, ...]:
    entry = HostEntry(name="gpu01", address="10.0.0.1", port=2222, ssh_args=words)
    return Connector(accept_new_host_keys=True)._resolver.route(entry).target.known_hosts


def test_tokens_in_the_name_of_a_known_hosts_file_are_replaced(home: Path) -> None:
    words = ("-o", "UserKnownHostsFile=~/keys/%k %d/%p%%")
    assert known_hosts(*words) == (home / "keys/10.0.0.1", home / "2222%")
    assert known_hosts(*words, "-o", "HostKeyAlias=first") == (home / "keys/first", home / "2222%")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("name", ["%C", "keys/%", "${KEYS}/known_hosts"])
def test_a_known_hosts_file_that_only_ssh_could_name_is_refused(name: str) -> None:
    with pytest.raises(InventoryError, match=r"UserKnownHostsFile .* of gpu01 has a token that is unknown here"):
        known_hosts("-o", f"UserKnownHostsFile={name}")
