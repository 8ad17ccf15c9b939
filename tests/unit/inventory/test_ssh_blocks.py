"""Blocks for ssh_config: the real ssh takes from them what the inventory says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterddp.inventory import HostEntry
from clusterddp.inventory.ssh_blocks import ssh_config_block

SSH = shutil.which("ssh")
ALIAS = "\nHost gpu00\n  HostName 10.9.9.9\n"


def understood(folder: Path, entry: HostEntry, more: str = "") -> dict[str, str]:
    """What ssh makes of it, by lower-case keyword; ``more``: the user's own configuration behind it."""
    path = folder / "config"
    path.write_text(ssh_config_block(entry) + "\n" + more)
    done = subprocess.run([str(SSH), "-G", "-F", path, entry.name], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.skipif(SSH is None, reason="no ssh program here")
@pytest.mark.parametrize(
    ("given", "keyword", "value"),
    [
        ({"address": "10.0.0.1"}, "hostname", "10.0.0.1"),
        ({}, "hostname", "10.9.9.9"),
        ({"port": 2222}, "port", "2222"),
        ({"user": "alice"}, "user", "alice"),
        ({"identity_file": Path("/a key")}, "identityfile", "/a key"),
        ({"ssh_args": ("-J", "bob@bastion:22")}, "proxyjump", "bob@bastion:22"),
        ({"ssh_args": ("-o", "ProxyCommand=ssh -W %h:%p bastion")}, "proxycommand", "ssh -W %h:%p bastion"),
        ({"ssh_args": ("-oUserKnownHostsFile=/a /b",)}, "userknownhostsfile", "/a /b"),
        ({"ssh_args": ("-oUserKnownHostsFile='/a b'",)}, "userknownhostsfile", "/a b"),
        ({"ssh_args": ("-o", "StrictHostKeyChecking=accept-new")}, "stricthostkeychecking", "accept-new"),
        ({"ssh_args": ("-o", "ConnectTimeout 7", "-q")}, "connecttimeout", "7"),
        ({"ssh_args": ("-6",)}, "addressfamily", "inet6"),
        ({"user": "alice", "ssh_args": ("-l", "bob")}, "user", "alice"),
        ({"address": "fe80::1%eth0"}, "hostname", "fe80::1%eth0"),
        ({"ssh_args": ("-i", "/a key")}, "identityfile", "/a key"),
        ({"ssh_args": ("-o", 'CertificateFile="/a key"')}, "certificatefile", "/a key"),
        ({"ssh_args": ("-o", "LocalForward=8080 h:80")}, "localforward", "8080 [h]:80"),
        ({"ssh_args": ("-o", "CanonicalDomains=a.b c.d")}, "canonicaldomains", "a.b c.d"),
        ({"ssh_args": ("-o", 'SetEnv=FOO="a b"')}, "setenv", "FOO=a b"),
        ({"ssh_args": ("-o", 'SetEnv="FOO=a b"')}, "setenv", "FOO=a b"),
        ({"ssh_args": ("-o", 'ProxyCommand=nc "%h" "%p"')}, "proxycommand", 'nc "%h" "%p"'),
    ],
)
def test_ssh_takes_what_the_inventory_says(tmp_path: Path, given: dict[str, Any], keyword: str, value: str) -> None:
    entry = HostEntry(**{"name": "gpu00", "address": "gpu00", **given})
    assert understood(tmp_path, entry, ALIAS)[keyword] == value


def test_this_machine_needs_none() -> None:
    assert ssh_config_block(HostEntry(name="here", address="here", connection="local")) == "# here is this machine"
