"""A private key with a passphrase: asked for once a command, whatever the number of hosts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import termios
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import AuthenticationError, UnreachableError
from clusterddp.hosts.ssh import Connector
from clusterddp.hosts.ssh.connector import MAX_ATTEMPTS
from tests.integration.cli import User, nothing_left, user_of
from tests.integration.throwaway_sshd import host_entry, make_key
from tests.lab.faults import children
from tests.lab.system import wait_until
from tests.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.integration.throwaway_sshd import Sshd
    from tests.lab import Lab

RIGHT = "open sesame"
ASKED = "Passphrase of "
WRONG = "Wrong passphrase. Passphrase of "


def lock(key: Path) -> None:
    """Give a private key that passphrase."""
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", RIGHT, "-f", str(key)], check=True, capture_output=True, timeout=60)


def locked(lab: Lab) -> Path:
    """Encrypt the SSH key of the lab's operator with the passphrase, and return its path."""
    key = lab.folder / "id_ed25519"
    lock(key)
    return key


@pytest.fixture(scope="module")
def key(three: Lab) -> Path:
    return locked(three)


@pytest.fixture
def user(three: Lab, key: Path, tmp_path: Path) -> Iterator[User]:
    """A user whose SSH key for the three hosts is encrypted with the passphrase."""
    assert key.exists()
    with nothing_left(three):
        yield user_of(three, tmp_path, {"a.txt": "text\n"})


def assert_asked_once(user: User, lab: Lab) -> None:
    """One question is asked for a command on all hosts, and it runs on each of them."""
    with user.start("exec", "hostname", terminal=True) as live:
        live.wait_for(f"{ASKED}{lab.folder}/id_ed25519: ")
        live.key(f"{RIGHT}\n")
        done = live.end()
    assert done.code == 0
    assert done.out.count(ASKED) == 1
    assert all(host.name in done.out for host in lab.hosts)
    assert RIGHT not in done.out


def test_one_key_is_asked_for_once_for_all_hosts(three: Lab, user: User) -> None:
    assert_asked_once(user, three)


def test_one_key_is_asked_for_once_behind_a_jump_host(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, bastion=True)
    locked(lab)
    assert_asked_once(user_of(lab, tmp_path, {}), lab)


def test_a_wrong_passphrase_is_said_and_may_be_typed_again(user: User) -> None:
    with user.start("sync", terminal=True) as live:
        live.wait_for(ASKED)
        live.key("wrong\n")
        live.wait_for(WRONG)
        live.key(f"{RIGHT}\n")
        done = live.end()
    assert (done.code, done.out.count(ASKED), done.out.count(WRONG)) == (0, 2, 1)
    assert "(attempt 2 of 3)" in done.out


def test_three_wrong_passphrases_end_the_command_with_one_line(user: User, key: Path) -> None:
    with user.start("exec", "true", terminal=True) as live:
        for number in range(3):
            live.wait_for(ASKED, times=number + 1)
            live.key("wrong\n")
        done = live.end()
    assert (done.code, done.out.count(ASKED)) == (125, 3)
    line = f"gpu[00:02]: the passphrase given for {key} was wrong, 3 times; `ssh-add {key}` asks for it once"
    assert done.out.count(line) == 1
    assert done.out.count("was wrong") == 1


@pytest.mark.parametrize("way", ["fabric", "openssh"])
def test_without_a_terminal_one_line_says_what_to_do(
    three: Lab, user: User, key: Path, tmp_path: Path, way: str
) -> None:
    three.write_inventory(user.folder / "inventory.yaml", more={"all": {"clusterddp_transport": way}})
    done = user.run("exec", "true")
    said = [line for line in done.notes if f"{key} has a passphrase" in line]
    assert done.code == 125
    assert len(said) == (1 if way == "fabric" else 3)  # ssh's own words name each host
    assert all(f"`ssh-add {key}`" in line for line in said)
    with agent_with(key, tmp_path) as env:
        assert user.run("exec", "true", env=env).code == 0


def test_ctrl_c_at_the_question_leaves_a_terminal_that_echoes(user: User) -> None:
    for command, code in (("sync", 130), ("exec", 130)):
        with user.start(command, *(["true"] if command == "exec" else []), terminal=True) as live:
            live.wait_for(ASKED)
            live.key("\x03")
            assert live.end().code == code
            assert termios.tcgetattr(live._terminal)[3] & termios.ECHO


def test_a_key_is_used_again_without_a_question(make_sshd: Callable[..., Sshd], home: Path) -> None:
    """Many hosts at once, one after the other, and one whose connection broke: one question."""
    made = make_sshd()
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line)
    lock(made.key)
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return RIGHT

    connector = Connector(ask=ask)
    try:
        with ThreadPoolExecutor(8) as pool:
            entries = [host_entry(made, name=f"gpu{number:02d}") for number in range(8)]
            pipes = list(pool.map(lambda entry: connector.open(entry, "echo there"), entries))
        assert all(pipe.read(100) == b"there\n" for pipe in pipes)
        for pipe in pipes:
            pipe.close()
        assert connector.open(host_entry(made), "echo back").read(100) == b"back\n"
    finally:
        connector.close()
    assert asked == [f"Passphrase of {made.key}: "]


def test_a_host_that_hung_up_while_the_user_typed_is_called_again(make_sshd: Callable[..., Sshd], home: Path) -> None:
    made = make_sshd(LoginGraceTime="1")
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line)
    lock(made.key)
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        assert made.process
        wait_until("sshd hangs up", lambda: not children(made.process.pid), timeout=60)  # type: ignore[union-attr]
        return RIGHT

    connector = Connector(ask=ask)
    try:
        assert connector.open(host_entry(made), "echo there").read(100) == b"there\n"
    finally:
        connector.close()
    assert len(asked) == 1


@pytest.mark.parametrize("form", ["RFC4716", "PEM", "PKCS8"])
def test_every_form_of_an_encrypted_key_is_read(make_sshd: Callable[..., Sshd], home: Path, form: str) -> None:
    made = make_sshd()
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line)
    made.key.unlink()
    key = home / ".ssh" / "id_rsa"
    words = ["ssh-keygen", "-q", "-t", "rsa", "-m", form, "-N", "schlüssel", "-f", str(key)]
    subprocess.run(words, check=True, timeout=60)
    (made.folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    answers = iter(["schlussel", "schlüssel"])
    connector = Connector(ask=lambda _prompt: next(answers))
    try:
        assert connector.open(host_entry(made), "echo there").read(100) == b"there\n"
    finally:
        connector.close()
    assert not list(answers)


def test_a_key_that_nobody_unlocks_leaves_the_next_its_turn(make_sshd: Callable[..., Sshd], home: Path) -> None:
    made = make_sshd()
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line)
    first = make_key(home / ".ssh" / "id_ecdsa", passphrase=RIGHT, kind="ecdsa")
    made.key.rename(home / ".ssh" / "id_rsa")  # default keys are tried by name: the locked one first
    for answer in ("", "wrong"):
        asked: list[str] = []
        connector = Connector(ask=lambda prompt, asked=asked, answer=answer: asked.append(prompt) or answer)  # type: ignore[misc]
        try:
            assert connector.open(host_entry(made), "echo there").read(100) == b"there\n"
        finally:
            connector.close()
        assert len(asked) == (3 if answer else 1)
        assert all(str(first) in prompt for prompt in asked)


def test_what_the_key_was_not_used_for_names_the_host_that_refused_another(
    make_sshd: Callable[..., Sshd], home: Path
) -> None:
    made = make_sshd()
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line)
    lock(made.key)
    stranger = make_key(home / ".ssh" / "id_rsa", kind="rsa")
    connector = Connector()
    try:
        with pytest.raises(AuthenticationError) as caught:
            connector.open(host_entry(made), "true")
    finally:
        connector.close()
    assert f"127.0.0.1:{made.port} refused {stranger}; {made.key} has a passphrase" in str(caught.value)
    assert f"ssh-add {made.key}" in caught.value.remedy


@contextlib.contextmanager
def agent_with(key: Path, folder: Path) -> Iterator[dict[str, str]]:
    """The variables of an ssh-agent of the test's own that holds a locked key."""
    answer, env = folder / "answer", {"SSH_AUTH_SOCK": str(folder / "agent")}
    answer.write_text(f"#!/bin/sh\necho '{RIGHT}'\n")
    answer.chmod(0o700)
    process = subprocess.Popen(["ssh-agent", "-D", "-a", env["SSH_AUTH_SOCK"]], stdout=subprocess.DEVNULL)
    try:
        wait_until("the agent listens", (folder / "agent").exists)
        asking = {**os.environ, **env, "SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", "-q", str(key)], env=asking, check=True, timeout=60, stdin=subprocess.DEVNULL)
        yield env
    finally:
        process.kill()
        process.wait(60)


UNLOCK = remedy("hosts/ssh/target.py", "`ssh-add {}` asks for it once, for all commands")


def test_the_told_command_unlocks_the_key_where_a_host_hangs_up_at_each_question(
    make_sshd: Callable[..., Sshd], home: Path, tmp_path: Path
) -> None:
    """Each try to log in is longer than the host waits: a key more is asked for each time."""
    made = make_sshd(LoginGraceTime="1")
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line)
    keys = [make_key(home / f"key{number}", passphrase=RIGHT) for number in range(MAX_ATTEMPTS)]
    (made.folder / "authorized_keys").write_text(keys[-1].with_suffix(".pub").read_text())
    (home / ".ssh" / "config").write_text("".join(f"IdentityFile {key}\n" for key in keys))

    def ask(_prompt: str) -> str:
        assert made.process
        wait_until("sshd hangs up", lambda: not children(made.process.pid), timeout=60)  # type: ignore[union-attr]
        return RIGHT

    connector = Connector(ask=ask)
    try:
        with pytest.raises(UnreachableError, match="hung up while the passphrase of") as caught:
            connector.open(host_entry(made), "echo there")
    finally:
        connector.close()
    (command,) = UNLOCK.commands(str(caught.value))
    assert command == f"ssh-add {keys[-1]}"
    with agent_with(keys[-1], tmp_path) as env, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSH_AUTH_SOCK", env["SSH_AUTH_SOCK"])
        connector = Connector()
        try:
            assert connector.open(host_entry(made), "echo there").read(100) == b"there\n"
        finally:
            connector.close()
