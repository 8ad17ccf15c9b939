"""Logins by the keys of an ssh-agent: what the ssh program can do with them, we can."""

from __future__ import annotations

import getpass
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import AuthenticationError
from tests.integration.throwaway_sshd import Sshd, host_entry, make_key, needs_sshd, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterddp.hosts.ssh import Connector

pytestmark = needs_sshd


@pytest.fixture
def add(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """Adds keys to a real agent of the operator's, who refuses all that it asks."""
    path = home / "agent"
    env = {**os.environ, "SSH_ASKPASS": "/bin/false", "SSH_ASKPASS_REQUIRE": "force"}
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL, env=env)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    try:
        while not path.exists():
            assert agent.poll() is None
        yield lambda key, *options: subprocess.run(["ssh-add", "-q", *options, str(key)], check=True, timeout=60)
    finally:
        agent.terminate()
        agent.wait()


@pytest.mark.parametrize("configured", [True, False])
def test_the_agents_keys_that_are_configured_or_have_a_default_name_are_offered_first(
    sshd: Sshd, home: Path, add: Callable[..., object], connector: Connector, *, configured: bool
) -> None:
    for number in range(7):  # sshd hangs up after six
        add(make_key(home / f"other{number}"))
    add(sshd.key)
    if configured:
        Path(f"{sshd.key}.pub").rename(home / "cluster.pub")
        sshd.key.unlink()
        (home / ".ssh" / "config").write_text(f"IdentityFile {home}/cluster\n")
    assert read_all(connector.open(host_entry(sshd), "echo hi")) == b"hi\n"


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
@pytest.mark.parametrize("trusted", ["key", "certificate"])
def test_of_a_key_and_its_certificate_each_logs_in(
    sshd: Sshd, home: Path, add: Callable[..., object], connector: Connector, kind: str, trusted: str
) -> None:
    authority, key = make_key(home / "ca"), make_key(home / "me", kind=kind)
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", getpass.getuser(), f"{key}.pub"], check=True
    )
    public = Path(f"{key}.pub").read_text()
    signed = f"cert-authority {Path(f'{authority}.pub').read_text()}"
    (sshd.folder / "authorized_keys").write_text(public if trusted == "key" else signed)
    add(key)  # ssh-add adds both
    assert read_all(connector.open(host_entry(sshd), "echo hi")) == b"hi\n"


def test_a_key_that_the_agent_does_not_sign_with_leaves_the_next_its_turn(
    sshd: Sshd, home: Path, add: Callable[..., object], connector: Connector
) -> None:
    add(make_key(home / "other"), "-c")
    add(sshd.key)
    assert read_all(connector.open(host_entry(sshd), "echo hi")) == b"hi\n"


def test_a_key_that_the_agent_does_not_sign_with_is_told(
    sshd: Sshd, add: Callable[..., object], connector: Connector
) -> None:
    add(sshd.key, "-c")
    sshd.key.unlink()
    with pytest.raises(
        AuthenticationError, match=r"agent key id_ed25519: the agent does not sign \(key cannot be used"
    ):
        connector.open(host_entry(sshd), "true")


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_the_agent_signs_for_a_locked_key_without_its_public_file(
    sshd: Sshd, home: Path, add: Callable[..., object], connector: Connector, kind: str
) -> None:
    key = make_key(home / "key", kind=kind)
    add(key)
    public = Path(f"{key}.pub")
    (sshd.folder / "authorized_keys").write_text(public.read_text())
    public.unlink()
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True, timeout=60)
    (home / ".ssh" / "config").write_text(f"IdentityFile {key}\nIdentitiesOnly yes\n")
    assert read_all(connector.open(host_entry(sshd), "echo hi")) == b"hi\n"
