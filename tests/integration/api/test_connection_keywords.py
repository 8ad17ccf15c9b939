"""Every keyword of ssh_config that decides trust or route: both openers of ours do as the real ``ssh`` does.

A case is what stands in the block ``Host gpu01`` and what comes of it; the sshd says which of the keys it took.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import ClusterddpError
from clusterddp.hosts.ssh import Connector
from clusterddp.inventory import HostEntry
from tests.integration.throwaway_sshd import Sshd, make_key, needs_sshd

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = needs_sshd
RELAY = """
import os, socket, sys, threading
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def out():
    while data := peer.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=out).start()
while data := os.read(0, 65536):
    peer.sendall(data)
"""


@dataclass
class Scene:
    """One sshd with all that the cases name."""

    home: Path
    sshd: Sshd
    other: Sshd
    folder: Path

    def config(self, block: str) -> Path:
        names = {path.name: str(path) for path in self.folder.iterdir()}
        values = {**names, "port": self.sshd.port, "bastion": self.other.port, "python": sys.executable}
        text = re.sub(r"<(\w+)>", lambda found: str(values[found[1]]), block)
        path = self.home / ".ssh" / "config"
        path.write_text(
            f"{text if text.startswith(('Match', 'Host ', 'Canonical')) else f'Host gpu01{chr(10)}{text}'}\n"
            f"Host gpu01\n HostName 127.0.0.1\n Port {self.sshd.port}\n"
            f"Host bastion\n HostName 127.0.0.1\n Port {self.other.port}\n"
            f"Host *\n UserKnownHostsFile {self.home}/.ssh/known_hosts\n IdentityFile {self.home}/.ssh/id_ed25519\n"
        )
        return path

    def taken(self) -> list[str]:
        """The keys that the sshd has accepted so far."""
        return re.findall(r"Accepted publickey for \S+ from .* ssh2: (.*)", self.sshd.log.read_text())


@pytest.fixture
def scene(home: Path, tmp_path: Path, make_sshd: Callable[..., Sshd]) -> Scene:
    folder = tmp_path / "files"
    folder.mkdir()
    authority = make_key(folder / "authority")
    made = make_sshd(TrustedUserCAKeys=f"{authority}.pub", KexAlgorithms="curve25519-sha256@libssh.org")
    other = make_sshd()
    key = " ".join(Path(f"{made.host_key}.pub").read_text().split()[:2])
    plain, stranger = make_key(folder / "signed"), make_key(folder / "stranger")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", "root,trainer", str(plain)]
    subprocess.run([*sign[:-1], f"{plain}.pub"], check=True, capture_output=True)
    (folder / "signed-cert.pub").rename(folder / "certificate")
    wrong = " ".join(stranger.with_suffix(".pub").read_text().split()[:2])
    (folder / "wrong_hosts").write_text(f"[127.0.0.1]:{made.port} {wrong}\n")
    (folder / "right_hosts").write_text(f"[127.0.0.1]:{made.port} {key}\n")
    (folder / "no_hosts").write_text("")
    (folder / "alias_hosts").write_text(f"another {key}\n")
    (folder / "plain_hosts").write_text(f"127.0.0.1 {key}\n")
    (folder / "both_hosts").write_text(f"[127.0.0.1]:{made.port} {wrong}\n127.0.0.1 {key}\n")
    (folder / "revoked").write_text(f"{key}\n")
    (folder / "tell").write_text(f"#!/bin/sh\necho '[127.0.0.1]:{made.port} {key}'\n")
    (folder / "tell").chmod(0o755)
    (folder / "relay").write_text(RELAY)
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line + other.known_hosts_line)
    return Scene(home=home, sshd=made, other=other, folder=folder)


CASES = {
    # block: does it let us in?
    "": True,
    "Port <bastion>\nHostKeyAlias nobody": False,
    "Port <bastion>": True,
    "HostName 127.0.0.2": False,  # its key is not known there
    "User nobody-here": False,
    "HostKeyAlias another": False,
    "HostKeyAlias another\nUserKnownHostsFile <alias_hosts>": True,
    "UserKnownHostsFile <wrong_hosts>": False,
    "UserKnownHostsFile <no_hosts>": False,
    "UserKnownHostsFile <plain_hosts>": True,
    "UserKnownHostsFile <both_hosts>": False,
    "UserKnownHostsFile <no_hosts> <right_hosts>": True,
    "UserKnownHostsFile <no_hosts>\nGlobalKnownHostsFile <right_hosts>": True,
    "GlobalKnownHostsFile <wrong_hosts>": True,  # the user's file knows the key
    "UserKnownHostsFile <no_hosts>\nStrictHostKeyChecking accept-new": True,
    "UserKnownHostsFile <no_hosts>\nStrictHostKeyChecking yes": False,
    "UserKnownHostsFile <wrong_hosts>\nStrictHostKeyChecking accept-new": False,
    "RevokedHostKeys <revoked>": False,
    "IdentityFile <stranger>\nIdentitiesOnly yes": True,  # and the key of `Host *`
    "IdentitiesOnly yes\nIdentityAgent none": True,
    "IdentityFile <signed>\nCertificateFile <certificate>": True,
    "IdentityAgent <no_hosts>": True,
    "UserKnownHostsFile <no_hosts>\nKnownHostsCommand <tell>": True,
    "UserKnownHostsFile <no_hosts>\nKnownHostsCommand /bin/true": False,
    "HostKeyAlgorithms rsa-sha2-512": False,
    "KexAlgorithms ecdh-sha2-nistp256": False,
    "KexAlgorithms curve25519-sha256@libssh.org": True,
    "Ciphers aes256-ctr": True,
    "ProxyJump bastion": True,
    "ProxyJump none": True,
    "ProxyJump nobody@127.0.0.1:1": False,
    "ProxyCommand <python> <relay> %h %p": True,
    "ProxyCommand <python> <relay> 127.0.0.1 <bastion>": False,  # another server than the known one
    "Match originalhost gpu01\nRevokedHostKeys <revoked>": False,
    "Match originalhost gpu02\nRevokedHostKeys <revoked>": True,
    "Match host 127.0.0.1\nRevokedHostKeys <revoked>": True,  # not known yet that it is that one
    "Match exec true\nRevokedHostKeys <revoked>": False,
    "Match exec false\nRevokedHostKeys <revoked>": True,
    "Host gpu0*\nRevokedHostKeys <revoked>": False,
    "Host !gpu01 *\nRevokedHostKeys <revoked>": True,
    "CanonicalizeHostname always\nCanonicalDomains invalid\nMatch canonical\nRevokedHostKeys <revoked>": False,
    "AddressFamily inet6": False,
    "AddressFamily inet": True,
    "BindAddress 127.0.0.1": True,
    "BindAddress 192.0.2.1": False,
}


@pytest.mark.parametrize(("block", "lets_in"), CASES.items(), ids=lambda value: repr(value)[:70])
def test_openers_do_as_ssh_does(scene: Scene, block: str, lets_in: bool) -> None:  # noqa: FBT001 - a table's column
    config = scene.config(block)
    written = {path: path.read_bytes() for path in scene.folder.iterdir()}
    options = ["-F", str(config), "-oBatchMode=yes", "-oConnectTimeout=10"]
    real = subprocess.run(
        ["ssh", *options, "gpu01", "true"], capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    assert (real.returncode == 0) is lets_in, real.stderr.decode()
    keys = scene.taken()
    for transport in ("auto", "openssh"):
        for path, data in written.items():
            path.write_bytes(data)
        connector = Connector(connect_timeout=10)
        try:
            pipe = connector.open(HostEntry(name="one", address="gpu01", transport=transport), "true")
            while pipe.read(4096):
                pass
            opened, error = True, None
        except ClusterddpError as refusal:
            opened, error = False, refusal
        connector.close()
        assert opened is lets_in, f"{transport}: {error}"
        assert scene.taken() == keys * (2 if transport == "auto" else 3), transport
