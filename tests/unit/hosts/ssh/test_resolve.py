"""The known_hosts files that a host's ssh arguments and the ssh configuration name, and keys that cannot be seen."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import InventoryError
from clusterddp.hosts.ssh.connector import Connector
from clusterddp.hosts.ssh.target import absent_key, login_remedy, special_key
from clusterddp.inventory import HostEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.ssh.resolve import Route

needs_ssh = pytest.mark.skipif(not shutil.which("ssh"), reason="ssh is asked")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write_config(home: Path, line: str) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh/config").write_text(f"Host *\n {line}\n")


def route(*words: str) -> Route:
    entry = HostEntry(name="gpu01", address="10.0.0.1", ssh_args=words)
    return Connector()._resolver.route(entry)


def known_hosts(*words: str) -> tuple[Path, ...]:
    entry = HostEntry(name="gpu01", address="10.0.0.1", port=2222, ssh_args=words)
    return Connector(accept_new_host_keys=True)._resolver.route(entry).target.known_hosts


def test_tokens_in_the_name_of_a_known_hosts_file_are_replaced(home: Path) -> None:
    words = ("-o", "UserKnownHostsFile=~/keys/%k %d/%p%%")
    assert known_hosts(*words) == (home / "keys/10.0.0.1", home / "2222%")
    assert known_hosts(*words, "-o", "HostKeyAlias=first") == (home / "keys/first", home / "2222%")


@pytest.mark.usefixtures("home")
def test_the_first_setting_of_known_hosts_files_counts() -> None:
    words = ("-o", "UserKnownHostsFile=/a /b", "-o", "UserKnownHostsFile=/c")
    assert known_hosts(*words) == (Path("/a"), Path("/b"))


@needs_ssh
def test_a_known_hosts_file_that_only_ssh_can_name_is_that_which_it_names(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYS", "/keys/100%")
    assert known_hosts("-o", "UserKnownHostsFile=${KEYS}/%h /keys/%k") == (
        Path("/keys/100%/10.0.0.1"),
        Path("/keys/10.0.0.1"),
    )
    (named,) = known_hosts("-o", "UserKnownHostsFile=~/.ssh/%C")
    assert named.parent == home / ".ssh"
    assert len(named.name) == 40  # hexadecimal digits


@needs_ssh
@pytest.mark.usefixtures("home")
def test_the_names_that_ssh_gives_are_not_taken_where_blanks_make_them_unclear() -> None:
    with pytest.raises(InventoryError, match=r"UserKnownHostsFile .* of gpu01 has a token that is unknown here"):
        known_hosts("-o", 'UserKnownHostsFile="/the keys/%C"')


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("name", ["%C", "keys/%", "${KEYS}/known_hosts"])
@pytest.mark.parametrize("place", ["arguments", "configuration"])
def test_without_ssh_a_known_hosts_file_that_only_ssh_could_name_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    write_config(home, f"UserKnownHostsFile {name if place == 'configuration' else '/keys/%C'}")
    with pytest.raises(InventoryError, match=r"UserKnownHostsFile .* of gpu01 has a token that is unknown here"):
        known_hosts(*(["-o", f"UserKnownHostsFile={name}"] if place == "arguments" else []))


@pytest.mark.parametrize("with_ssh", [pytest.param(True, marks=needs_ssh), False])
def test_tokens_of_the_configuration_are_replaced_with_and_without_ssh(
    home: Path, monkeypatch: pytest.MonkeyPatch, *, with_ssh: bool
) -> None:
    if not with_ssh:
        monkeypatch.setattr(shutil, "which", lambda _: None)
    write_config(home, "UserKnownHostsFile ~/.ssh/%k /keys/%p%%")
    assert known_hosts() == (home / ".ssh/10.0.0.1", Path("/keys/2222%"))


@pytest.fixture
def closed_home(home: Path) -> Iterator[Path]:
    """A home that this user may not search."""
    (home / ".ssh").mkdir()
    home.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield home
    os.seteuid(user)
    home.chmod(0o700)


def test_keys_that_cannot_be_seen_are_none(closed_home: Path) -> None:
    entry = HostEntry(name="gpu01", address="10.0.0.1", ssh_args=("-o", "UserKnownHostsFile=/keys/known"))
    target = Connector()._resolver.route(entry).target
    assert target.key_files == ()
    assert absent_key([closed_home / ".ssh/own"]) == closed_home / ".ssh/own"
    assert special_key([closed_home / ".ssh/own"]) == ""
    assert "ssh-keygen" in login_remedy(target, keys=False)


@needs_ssh
@pytest.mark.parametrize(
    ("line", "keyword"),
    [
        ("ProxyUseFdpass yes", "ProxyUseFdpass"),
        ("PreferredAuthentications hostbased,publickey", "PreferredAuthentications"),
        ("PreferredAuthentications gssapi-with-mic,publickey", "PreferredAuthentications"),
        ("HostbasedAuthentication yes", ""),  # we may be asked for a passphrase, which the program may not
        ("PubkeyAuthentication no", ""),
        ("PreferredAuthentications publickey,password", ""),
        ("PreferredAuthentications keyboard-interactive,password", ""),
    ],
)
def test_a_login_that_only_ssh_knows_is_left_to_it_unless_it_may_ask_the_user(
    home: Path, line: str, keyword: str
) -> None:
    write_config(home, line)
    found = route()
    assert (found.openssh, found.why) == (bool(keyword), f"{keyword} in ssh_config" if keyword else "")


@needs_ssh
@pytest.mark.parametrize("argument", [("-i", "{}"), ("-o", "IdentityFile={}")])
def test_the_keys_of_the_arguments_go_before_those_of_the_configuration(home: Path, argument: tuple[str, ...]) -> None:
    write_config(home, "IdentityFile ~/.ssh/work")
    keys = tuple(home / ".ssh" / name for name in ("argument", "work"))
    for key in keys:
        key.touch()
    assert route(*(word.format(keys[0]) for word in argument)).target.key_files == keys


@needs_ssh
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("key-%h-%n-%p-%r%%", "key-10.0.0.1-10.0.0.1-22-me%"),
        ("key-%k", "key-first"),
        ("key-%u", f"key-{getpass.getuser()}"),
        ("key-%i", f"key-{os.getuid()}"),
        ("key-%l", f"key-{socket.gethostname()}"),
        ("key-%L", f"key-{socket.gethostname().partition('.')[0]}"),
        ("key-${CLUSTER}", "key-100%h"),
    ],
)
@pytest.mark.parametrize("place", ["configuration", "arguments"])
def test_tokens_and_variables_in_the_name_of_a_key_are_replaced(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, place: str
) -> None:
    monkeypatch.setenv("CLUSTER", "100%h")
    key = home / ".ssh" / name
    write_config(home, "HostKeyAlias first\nUser me" + (f"\nIdentityFile ~/.ssh/{text}" * (place == "configuration")))
    key.touch()
    words = ("-o", f"IdentityFile=~/.ssh/{text}") if place == "arguments" else ()
    assert key in route(*words).target.key_files


@needs_ssh
@pytest.mark.parametrize("place", ["configuration", "arguments"])
def test_an_identity_file_of_none_keeps_the_default_keys_from_hosts(home: Path, place: str) -> None:
    write_config(home, "User me" + "\nIdentityFile none" * (place == "configuration"))
    for name in ("id_ed25519", "work"):
        (home / ".ssh" / name).touch()
    words = ("-o", "IdentityFile=none") if place == "arguments" else ()
    assert route(*words).target.key_files == ()
    assert route(*words, "-i", "~/.ssh/work").target.key_files == (home / ".ssh/work",)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("value", "means"), [("yes", True), ("Yes", True), ("true", True), ("no", False)])
def test_yes_is_what_ssh_takes_for_it(value: str, means: bool) -> None:  # noqa: FBT001
    target = route("-o", f"IdentitiesOnly={value}", "-o", f"Compression={value}").target
    assert (target.only_named_keys, target.compress) == (means, means)


@pytest.mark.parametrize("line", ["IdentityFile ~/.ssh/work", "IdentityFile ~/.ssh/work.pub", "User me"])
def test_a_key_may_have_its_public_file_alone_here(home: Path, line: str) -> None:
    write_config(home, line)
    public = home / ".ssh" / ("id_rsa.pub" if line == "User me" else "work.pub")
    public.write_text("ssh-rsa AAAA me\n")
    target = route().target
    assert target.key_files == (public,)
    assert target.absent_key is None
    assert "ssh-keygen" not in login_remedy(target, keys=False)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("text", "user", "host", "port"),
    [
        ("me@bastion:2222", "me", "bastion", 2222),
        ("me@corp.com@bastion", "me@corp.com", "bastion", 22),
        ("ssh://me@corp.com@[::1]:2222/", "me@corp.com", "::1", 2222),
    ],
)
def test_the_user_of_a_jump_host_ends_at_the_last_at_sign(text: str, user: str, host: str, port: int) -> None:
    via = route("-J", text).target.via
    assert via is not None
    assert (via.user, via.host, via.port) == (user, host, port)
