"""Who reaches a host: paramiko, or the ssh program where paramiko cannot honour what is said."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import AuthenticationError, UsageError
from clusterddp.hosts.ssh import Connector
from tests.integration.throwaway_sshd import SSH, Sshd, host_entry, make_key, needs_sshd, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


pytestmark = needs_sshd


def test_the_plain_way_is_paramiko_without_a_word(sshd: Sshd, connector: Connector) -> None:
    pipe = connector.open(host_entry(sshd, transport="auto"), "true")
    assert type(pipe).__name__ == "FabricPipe"
    assert connector.notices == []


def certificate_file(home: Path) -> str:
    (home / ".ssh" / "config").write_text("CertificateFile ~/.ssh/elsewhere-cert.pub\n")
    return "CertificateFile in ssh_config"


def match_exec(home: Path) -> str:
    (home / ".ssh" / "config").write_text("Include extra.conf\n")
    (home / ".ssh" / "extra.conf").write_text('Match exec "true"\n  Compression no\n')
    return "Match exec in ssh_config"


def identity_agent(home: Path) -> str:
    (home / ".ssh" / "config").write_text("Host 127.*\n  IdentityAgent ~/agent.sock\n")
    return "IdentityAgent in ssh_config"


def certificate_beside_the_key(home: Path) -> str:
    key = home / ".ssh" / "id_ed25519"
    authority = make_key(home / "ca")
    subprocess.run(["ssh-keygen", "-q", "-s", str(authority), "-I", "me", f"{key}.pub"], check=True)
    return f"the certificate {key}-cert.pub"


def security_key(home: Path) -> str:
    (home / ".ssh" / "id_ed25519_sk").write_text("")
    return f"the security key {home}/.ssh/id_ed25519_sk"


REASONS = [certificate_file, match_exec, identity_agent, certificate_beside_the_key, security_key]


@pytest.mark.parametrize("prepare", REASONS, ids=lambda prepare: prepare.__name__)
def test_what_paramiko_cannot_honour_goes_to_the_ssh_program(
    sshd: Sshd, home: Path, connector: Connector, prepare: Callable[[Path], str]
) -> None:
    reason = prepare(home)
    if (home / ".ssh" / "config").exists():
        with (home / ".ssh" / "config").open("a") as config:
            config.write(f"\nHost *\n  IdentityFile {home}/.ssh/id_ed25519\n")
    assert read_all(connector.open(host_entry(sshd, transport="auto"), "echo hi")) == b"hi\n"
    assert connector.notices == [f"gpu01: reached through the ssh program, for {reason}"]
    with pytest.raises(UsageError, match=f"^gpu01: clusterddp_transport fabric cannot honour {reason}"):
        connector.open(host_entry(sshd, transport="fabric"), "true")


def test_foreign_ssh_arguments_go_to_the_ssh_program(sshd: Sshd, connector: Connector) -> None:
    for name in ("gpu01", "gpu02"):
        connector.open(host_entry(sshd, name=name, transport="auto", ssh_args=("-4",)), "true")
    assert connector.notices == ["gpu01, gpu02: reached through the ssh program, for -4 in the ssh arguments"]


def test_a_host_vouched_for_by_an_authority_goes_to_the_ssh_program(
    make_sshd: Callable[..., Sshd], home: Path, tmp_path: Path, connector: Connector
) -> None:
    authority = make_key(tmp_path / "ca")
    made = make_sshd()
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(authority), "-I", "h", "-h", "-n", "127.0.0.1", f"{made.host_key}.pub"],
        check=True,
    )
    made.stop()
    made.options["HostCertificate"] = f"{made.host_key}-cert.pub"
    made.start()
    (home / ".ssh" / "known_hosts").write_text(f"@cert-authority * {authority.with_suffix('.pub').read_text()}")
    assert read_all(connector.open(host_entry(made, transport="auto"), "echo hi")) == b"hi\n"
    assert "@cert-authority" in connector.notices[0]


@pytest.fixture
def agent_s_key(sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A private key that only an agent holds; its public key is beside the path."""
    sock = tmp_path / "a.sock"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        while not sock.exists():
            assert agent.poll() is None
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        key = sshd.key
        subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)
        key.unlink()
        yield key
    finally:
        agent.terminate()
        agent.wait()


@pytest.mark.usefixtures("agent_s_key")
def test_an_agent_s_key_logs_in(sshd: Sshd, connector: Connector) -> None:
    command = "echo hi; test -z $SSH_AUTH_SOCK && echo none"
    assert read_all(connector.open(host_entry(sshd), command)) == b"hi\nnone\n"


@pytest.mark.parametrize("transport", SSH)
@pytest.mark.parametrize("suffix", ["", ".pub"])
def test_an_agent_s_key_logs_in_by_the_name_of_its_public_key(
    sshd: Sshd, home: Path, agent_s_key: Path, connector: Connector, suffix: str, transport: str
) -> None:
    public = home / "work.pub"
    agent_s_key.with_suffix(".pub").rename(public)
    config = home / ".ssh" / "config"
    config.write_text(f"IdentityFile {public.with_suffix(suffix)}\nIdentitiesOnly yes\n")
    assert read_all(connector.open(host_entry(sshd, transport=transport), "echo hi")) == b"hi\n"
    config.write_text(f"IdentityAgent none\n{config.read_text()}")
    with contextlib.closing(Connector()) as without, pytest.raises(AuthenticationError) as caught:
        without.open(host_entry(sshd, transport=transport), "true")
    assert f"your agent holds the private key of {public}" in str(caught.value)
    assert transport == "openssh" or f"no agent here holds the private key of {public}" in str(caught.value)


def test_without_the_ssh_program_the_configuration_is_read_still(
    sshd: Sshd, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".ssh" / "config").write_text(f"Host alias\n  HostName 127.0.0.1\n  Port {sshd.port}\n")
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    connector = Connector(connect_timeout=5)
    assert read_all(connector.open(host_entry(address="alias", transport="auto"), "echo hi")) == b"hi\n"
    connector.close()
    with pytest.raises(UsageError, match="no ssh program"):
        Connector().open(host_entry(sshd, transport="openssh"), "true")
