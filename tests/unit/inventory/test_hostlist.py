"""Host lists on the command line, and the inventories they become."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from clusterddp.errors import InventoryError
from clusterddp.inventory import from_host_list, load

if TYPE_CHECKING:
    from pathlib import Path


def test_a_host_list_becomes_an_inventory(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    text = from_host_list("alice@gpu01, gpu02:2222,[::1]:22,fe80::2,[fe80::3],bob@n[01:02]:2200,")
    inventory.write_text(text)
    loaded = load(inventory)
    assert [(host.name, host.user, host.port) for host in loaded.hosts] == [
        ("gpu01", "alice", None),
        ("gpu02", None, 2222),
        ("::1", None, 22),
        ("fe80::2", None, None),
        ("fe80::3", None, None),
        ("n01", "bob", 2200),
        ("n02", "bob", 2200),
    ]
    assert "n[01:02]" in yaml.safe_load(text)["all"]["hosts"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host"),
        (" , ", "names no host"),
        ("-gpu01", "is not a host name"),
        ("@gpu01", "user is empty"),
        ("-l@gpu01", "begins with -"),
        ("gpu01,gpu01", "is given twice"),
        ("gpu[1:3],gpu2", "is given twice"),
        ("gpu[3:1]", "is empty"),
        ("gpu01:0", "port 0"),
        ("gpu01:99999", "port 99999"),
        ("gpu 01", "is not a host name"),
        ("a/b", "is not a host name"),
        ("gpu01:ssh", "is not a host name"),
        ("::1:x", "is not a host name"),
    ],
)
def test_a_bad_host_list_is_an_error(text: str, words: str) -> None:
    with pytest.raises(InventoryError, match=words):
        from_host_list(text)
