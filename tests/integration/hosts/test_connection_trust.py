"""Whose key is trusted, and which of ours is offered: host keys and logins against real sshd."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import AuthenticationError, HostKeyError, UsageError
from clusterddp.hosts.ssh import Connector, UnknownHostKeyError, append_known_hosts
from tests.integration.throwaway_sshd import SSH, Sshd, free_port, host_entry, make_key, needs_sshd, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterddp.inventory import HostEntry

pytestmark = needs_sshd


def way(sshd: Sshd, transport: str) -> HostEntry:
    return host_entry(sshd, transport=transport)


FORWARDED = "echo agent=$SSH_AUTH_SOCK display=$DISPLAY; exec 3<>/dev/tcp/127.0.0.1/{port} && echo a port is open"


@pytest.fixture
def agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A real agent of the operator's."""
    path = home / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert "SSH_AUTH_SOCK" in process.stdout.readline()
            monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
            yield
        finally:
            process.kill()


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("transport", SSH)
def test_no_agent_display_or_port_is_a_hosts_whatever_ssh_config_says(
    sshd: Sshd, home: Path, connector: Connector, transport: str
) -> None:
    port, config = free_port(), home / "config"
    forwards = f"RemoteForward 127.0.0.1:{port} 127.0.0.1:{free_port()}"
    config.write_text(f"Host *\n ForwardAgent yes\n ForwardX11 yes\n {forwards}\n")
    command = f"bash -c '{FORWARDED.format(port=port)}'"
    entry = host_entry(sshd, transport=transport, ssh_args=("-F", str(config)))
    assert read_all(connector.open(entry, command)) == b"agent= display=\n"
    keys = ["-i", str(home / ".ssh/id_ed25519"), f"-oUserKnownHostsFile={home}/.ssh/known_hosts"]
    words = ["ssh", "-F", str(config), *keys, "-p", str(sshd.port), f"{entry.user}@127.0.0.1", command]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    assert "agent=/" in done.stdout, done.stderr  # ssh by itself does forward
    assert "a port is open" in done.stdout, done.stderr


@pytest.mark.parametrize("transport", SSH)
def test_an_unknown_key_is_refused_and_accepted_by_the_user_s_yes(
    sshd: Sshd, home: Path, connector: Connector, transport: str
) -> None:
    known_hosts = home / ".ssh" / "known_hosts"
    line = known_hosts.read_text()
    known_hosts.write_text("other ssh-ed25519 AAAA\n")
    with pytest.raises(UnknownHostKeyError, match="--accept-new-host-keys") as caught:
        connector.open(way(sshd, transport), "true")
    assert caught.value.known_hosts_line + "\n" == line
    assert caught.value.fingerprint.startswith("ssh-ed25519 SHA256:")
    append_known_hosts([caught.value])
    assert known_hosts.read_text() == "other ssh-ed25519 AAAA\n" + line
    assert read_all(connector.open(way(sshd, transport), "echo hi")) == b"hi\n"


@pytest.mark.parametrize("transport", SSH)
@pytest.mark.parametrize("args", [(), ("-o", "StrictHostKeyChecking=no"), ("-o", "UserKnownHostsFile=/dev/null")])
def test_a_changed_key_is_refused_whatever_is_said(
    sshd: Sshd, home: Path, tmp_path: Path, transport: str, args: tuple[str, ...]
) -> None:
    known_hosts = home / ".ssh" / "known_hosts"
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text()
    text = f"# first\n[127.0.0.1]:{sshd.port} {other}"
    known_hosts.write_text(text)
    connector = Connector(accept_new_host_keys=True)
    with pytest.raises(HostKeyError, match="has changed") as caught:
        connector.open(host_entry(sshd, transport=transport, ssh_args=args), "true")
    assert f"{known_hosts}:2" in str(caught.value)
    assert f"ssh-keygen -f {known_hosts} -R '[127.0.0.1]:{sshd.port}'" in caught.value.remedy
    assert known_hosts.read_text() == text
    assert sshd.logins() == 0
    connector.close()


@pytest.mark.parametrize("transport", SSH)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("accept", [True, False])
def test_a_revoked_key_is_said_to_be_revoked(
    sshd: Sshd, home: Path, transport: str, *, known: bool, accept: bool
) -> None:
    known_hosts = home / ".ssh" / "known_hosts"
    line = known_hosts.read_text()
    text = line * known + "@revoked * " + line.partition(" ")[2]
    known_hosts.write_text(text)
    connector = Connector(accept_new_host_keys=accept)
    with pytest.raises(HostKeyError, match="is revoked") as caught:
        connector.open(way(sshd, transport), "true")
    assert not isinstance(caught.value, UnknownHostKeyError)  # nobody is asked whether to trust it
    assert caught.value.remedy == "do not connect until the host has a new key"
    assert (known_hosts.read_text(), sshd.logins()) == (text, 0)
    connector.close()


@pytest.mark.parametrize("transport", SSH)
def test_a_revoked_key_of_a_jump_host_is_said_to_be_the_jump_host_s(
    make_sshd: Callable[..., Sshd], home: Path, transport: str
) -> None:
    host, bastion = make_sshd(), make_sshd()
    key = bastion.known_hosts_line.partition(" ")[2]
    (home / ".ssh" / "known_hosts").write_text(
        f"{host.known_hosts_line}{bastion.known_hosts_line}@revoked [127.0.0.1]:{bastion.port} {key}"
    )
    (home / ".ssh" / "config").write_text(
        f"Host bastion\n HostName 127.0.0.1\n Port {bastion.port}\nHost gpu01 127.0.0.1\n ProxyJump bastion\n"
    )
    with pytest.raises(HostKeyError, match="is revoked") as caught:
        Connector().open(way(host, transport), "true")
    assert ("jump host bastion" if transport == "fabric" else f"[127.0.0.1]:{bastion.port}") in str(caught.value)


def write_bastion_config(home: Path, bastion: Sshd, host: Sshd, *lines: str) -> None:
    """A host behind a bastion; the lines stand in the block of the host alone."""
    block = "".join(f" {line}\n" for line in lines)
    (home / ".ssh" / "config").write_text(
        f"Host gpu\n HostName 127.0.0.1\n Port {host.port}\n ProxyJump bastion\n{block}"
        f"Host bastion\n HostName 127.0.0.1\n Port {bastion.port}\n"
        f"Host *\n IdentityFile {home}/.ssh/id_ed25519\n UserKnownHostsFile {home}/.ssh/known_hosts\n"
    )


def told_by_ssh(home: Path) -> str:
    """What ssh itself says with that configuration, which its jump host's ssh reads too."""
    config = home / "config"
    config.write_text("BatchMode yes\n" + (home / ".ssh" / "config").read_text())
    words = ["ssh", "-F", str(config), "gpu", "echo hi"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


def behind_the_bastion(transport: str, *ssh_args: str) -> HostEntry:
    return host_entry(address="gpu", transport=transport, ssh_args=ssh_args)


@pytest.mark.parametrize("transport", SSH)
@pytest.mark.parametrize("value", ["accept-new", "no"])
def test_new_keys_that_ssh_config_takes_of_a_host_are_not_its_jump_host_s(
    make_sshd: Callable[..., Sshd], home: Path, connector: Connector, transport: str, value: str
) -> None:
    bastion, host = make_sshd(), make_sshd()
    hosts = home / ".ssh" / "gpu_hosts"
    write_bastion_config(home, bastion, host, f"StrictHostKeyChecking {value}", f"UserKnownHostsFile {hosts}")
    assert "verification failed" in told_by_ssh(home)
    with pytest.raises(HostKeyError, match="is unknown"):
        connector.open(behind_the_bastion(transport), "echo hi")
    assert not hosts.exists()
    (home / ".ssh" / "known_hosts").write_text(bastion.known_hosts_line)
    assert read_all(connector.open(behind_the_bastion(transport), "echo hi")) == b"hi\n"
    assert hosts.read_text().split()[1:] == host.known_hosts_line.split()[1:]


@pytest.mark.parametrize("transport", SSH)
@pytest.mark.parametrize("place", ["ssh_config", "ssh arguments"])
def test_a_key_that_all_hosts_share_is_not_the_key_of_their_jump_host(
    make_sshd: Callable[..., Sshd], home: Path, tmp_path: Path, connector: Connector, transport: str, place: str
) -> None:
    host = make_sshd()
    impostor = make_sshd(HostKey=str(host.host_key))
    real = make_key(tmp_path / "real").with_suffix(".pub").read_text()
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{impostor.port} {real}")
    hosts = f"UserKnownHostsFile {home}/.ssh/gpu_hosts"
    (home / ".ssh" / "gpu_hosts").write_text("* " + host.known_hosts_line.partition(" ")[2])
    write_bastion_config(home, impostor, host, *([hosts] if place == "ssh_config" else []))
    assert "IDENTIFICATION HAS CHANGED" in told_by_ssh(home)
    arguments = [] if place == "ssh_config" else ["-o", hosts]
    with pytest.raises(HostKeyError, match="has changed"):
        connector.open(behind_the_bastion(transport, *arguments), "echo hi")
    assert impostor.logins() == 0


@pytest.mark.parametrize("transport", SSH)
def test_the_ssh_arguments_say_which_keys_are_known_and_taken_of_all_jump_hosts_too(
    make_sshd: Callable[..., Sshd], home: Path, connector: Connector, transport: str
) -> None:
    first, second, host = make_sshd(), make_sshd(), make_sshd()
    write_bastion_config(home, second, host)
    with (home / ".ssh" / "config").open("a") as config:
        config.write(f"Host bastion\n ProxyJump 127.0.0.1:{first.port}\n")
    file = home / "cluster hosts"
    file.write_text(host.known_hosts_line)
    arguments = ("-o", f'UserKnownHostsFile="{file}"')
    with pytest.raises(HostKeyError):
        connector.open(behind_the_bastion(transport, *arguments), "true")
    connector.open(behind_the_bastion(transport, *arguments, "-o", "StrictHostKeyChecking=accept-new"), "true")
    known = {line.split()[-1] for line in file.read_text().splitlines()}
    assert known == {sshd.known_hosts_line.split()[-1] for sshd in (first, second, host)}
    assert read_all(connector.open(behind_the_bastion(transport, *arguments), "echo hi")) == b"hi\n"


@pytest.mark.parametrize("transport", ["auto", "openssh"])
@pytest.mark.parametrize("kind", ["list", "KRL"])
@pytest.mark.parametrize("accept", [True, False])
def test_a_key_revoked_by_a_file_is_said_to_be_revoked_by_it(
    sshd: Sshd, home: Path, transport: str, kind: str, *, accept: bool
) -> None:
    revoked = home / "revoked keys"
    if kind == "list":
        revoked.write_text(sshd.host_key.with_suffix(".pub").read_text())
    else:
        subprocess.run(
            ["ssh-keygen", "-q", "-k", "-f", str(revoked), f"{sshd.host_key}.pub"], check=True, capture_output=True
        )
    (home / ".ssh" / "config").write_text(f'RevokedHostKeys "{revoked}"\n')
    connector = Connector(accept_new_host_keys=accept)
    with pytest.raises(HostKeyError, match=f"host key ED25519 SHA256:\\S+ is revoked by {revoked}") as caught:
        connector.open(way(sshd, transport), "true")
    assert not isinstance(caught.value, UnknownHostKeyError)
    assert sshd.logins() == 0
    connector.close()


def test_a_list_of_revoked_keys_that_is_not_there_is_said(sshd: Sshd, home: Path, connector: Connector) -> None:
    (home / ".ssh" / "config").write_text(f"RevokedHostKeys {home}/nowhere\n")
    with pytest.raises(HostKeyError, match=r"cannot be found out: .*/nowhere: No such file") as caught:
        connector.open(way(sshd, "openssh"), "true")
    assert caught.value.remedy == "correct RevokedHostKeys in the ssh configuration"


def test_new_keys_are_appended_once_by_many_at_once(sshd: Sshd, home: Path) -> None:
    known_hosts = home / ".ssh" / "known_hosts"
    line = known_hosts.read_text()
    known_hosts.unlink()
    connector = Connector(accept_new_host_keys=True)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: connector.open(way(sshd, "fabric"), "true"), range(8)))
    connector.close()
    assert known_hosts.read_text() == line
    assert known_hosts.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("transport", SSH)
@pytest.mark.parametrize("value", ["accept-new", "no"])
def test_ssh_args_may_accept_new_keys_into_their_own_file(
    sshd: Sshd, home: Path, connector: Connector, transport: str, value: str
) -> None:
    (home / ".ssh" / "known_hosts").unlink()
    file = home / "cluster hosts"
    args = ("-o", f'UserKnownHostsFile="{file}"', "-o", f"StrictHostKeyChecking={value}")
    connector.open(host_entry(sshd, transport=transport, ssh_args=args), "true")
    assert file.read_text().split()[1:] == sshd.known_hosts_line.split()[1:]
    assert not (home / ".ssh" / "known_hosts").exists()
    told = ["gpu01: StrictHostKeyChecking no is used as accept-new: a changed key is still refused"]
    assert connector.notices == (told if value == "no" else [])


@pytest.mark.parametrize("transport", SSH)
def test_known_hosts_may_hold_authorities_and_rubbish(
    sshd: Sshd, home: Path, connector: Connector, transport: str
) -> None:
    file = home / ".ssh" / "known_hosts"
    file.write_text(f"@cert-authority * ssh-ed25519 AAAA x\nnonsense\nh ssh-dss AAAA\n{file.read_text()}")
    assert read_all(connector.open(way(sshd, transport), "echo hi")) == b"hi\n"


@pytest.mark.parametrize("transport", SSH)
def test_hashed_names_are_known(sshd: Sshd, home: Path, connector: Connector, transport: str) -> None:
    file = home / ".ssh" / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert file.read_text().startswith("|1|")
    connector.open(way(sshd, transport), "true")


@pytest.mark.parametrize("transport", SSH)
def test_a_known_key_type_is_asked_for(
    make_sshd: Callable[..., Sshd], home: Path, tmp_path: Path, connector: Connector, transport: str
) -> None:
    rsa = make_key(tmp_path / "rsa", kind="rsa")
    made = make_sshd(HostKey=f"{tmp_path / 'sshd0' / 'host_key'}\nHostKey {rsa}")
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{made.port} {rsa.with_suffix('.pub').read_text()}")
    connector.open(way(made, transport), "true")


@pytest.mark.parametrize("transport", SSH)
def test_a_refused_key_is_named_with_the_remedy(
    sshd: Sshd, tmp_path: Path, connector: Connector, transport: str
) -> None:
    stranger = make_key(tmp_path / "stranger")
    with pytest.raises(AuthenticationError) as caught:
        connector.open(host_entry(sshd, transport=transport, identity_file=stranger), "true")
    message = str(caught.value)
    assert message.startswith("gpu01: ")
    assert f"refused {stranger}" in message
    assert f"ssh-copy-id -i {stranger}" in message
    assert "id_ed25519" not in message  # a named key is the only one offered


@pytest.mark.parametrize("transport", SSH)
def test_no_key_at_all_is_said(sshd: Sshd, home: Path, connector: Connector, transport: str) -> None:
    for name in ("id_ed25519", "id_ed25519.pub"):
        (home / ".ssh" / name).unlink()
    with pytest.raises(AuthenticationError, match="ssh-copy-id"):
        connector.open(way(sshd, transport), "true")


@pytest.mark.parametrize("transport", SSH)
def test_a_missing_key_file_is_named_with_its_place(
    sshd: Sshd, tmp_path: Path, connector: Connector, transport: str
) -> None:
    with pytest.raises(UsageError, match=r"^inventory.yaml:3: key file .*/nokey of gpu01 cannot be read: No such"):
        connector.open(host_entry(sshd, transport=transport, identity_file=tmp_path / "nokey"), "true")


@pytest.mark.parametrize("content", ["", "rubbish", "public"])
def test_a_wrong_key_file_is_named(sshd: Sshd, home: Path, tmp_path: Path, connector: Connector, content: str) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text((home / ".ssh" / "id_ed25519.pub").read_text() if content == "public" else content)
    with pytest.raises(UsageError, match="holds no private key"):
        connector.open(host_entry(sshd, identity_file=wrong), "true")


def test_a_broken_default_key_is_passed_over_where_another_key_logs_in(
    sshd: Sshd, home: Path, connector: Connector
) -> None:
    for ending in ("", ".pub"):
        (home / ".ssh" / f"id_ed25519{ending}").rename(home / ".ssh" / f"id_rsa{ending}")
    for name in ("id_ed25519", "id_ecdsa"):
        (home / ".ssh" / name).write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nrubbish\n")
    connector.open(host_entry(sshd), "true")


def test_a_host_that_wants_two_keys_gets_both(make_sshd: Callable[..., Sshd], home: Path, connector: Connector) -> None:
    made = make_sshd(AuthenticationMethods="publickey,publickey")
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line)
    with pytest.raises(AuthenticationError, match=r"took .*/id_ed25519, and also asks for publickey; have your agent"):
        connector.open(host_entry(made), "true")
    second = make_key(home / ".ssh" / "id_rsa", kind="rsa")
    with (made.folder / "authorized_keys").open("a") as file:
        file.write(second.with_suffix(".pub").read_text())
    connector.open(host_entry(made), "true")


def test_a_key_file_others_can_read_is_taken(sshd: Sshd, home: Path, connector: Connector) -> None:
    (home / ".ssh" / "id_ed25519").chmod(0o644)
    connector.open(host_entry(sshd, identity_file=home / ".ssh" / "id_ed25519"), "true")


def test_a_key_with_a_passphrase_needs_somebody_to_ask(make_sshd: Callable[..., Sshd], home: Path) -> None:
    locked = home / ".ssh" / "id_ed25519"
    made = make_sshd()
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line)
    locked.unlink()
    make_key(locked, passphrase="open sesame")
    (made.folder / "authorized_keys").write_text(locked.with_suffix(".pub").read_text())
    silent = Connector()
    with pytest.raises(AuthenticationError, match=f"{locked} has a passphrase, .*; `ssh-add {locked}`"):
        silent.open(host_entry(made), "true")
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return "open sesame"

    asking = Connector(ask=ask)
    asking.open(host_entry(made), "true")
    assert prompts == [f"Passphrase of {locked}: "]
    asking.close()
