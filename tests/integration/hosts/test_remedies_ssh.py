"""What messages about SSH tell a user to do is done as it was printed, and a real sshd lets us in."""

from __future__ import annotations

import getpass
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import User
from tests.integration.throwaway_sshd import make_key, needs_sshd
from tests.remedies import Remedy, remedy, type_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.throwaway_sshd import Sshd

pytestmark = needs_sshd
EXEC = "clusterddp exec -i i.yaml -- true"


@pytest.fixture
def user(tmp_path: Path) -> User:
    base = tmp_path / "user"
    base.mkdir()
    return User(base)


def inventory(user: User, sshd: Sshd, **variables: Any) -> None:
    """Write i.yaml: the one host is that sshd, which is known; of None nothing is said."""
    known = user.home / "known_hosts"
    known.write_text(sshd.known_hosts_line)
    args = variables.pop("args", "")
    every = {
        "ansible_host": "127.0.0.1",
        "ansible_port": sshd.port,
        "ansible_user": getpass.getuser(),
        "ansible_ssh_private_key_file": str(sshd.key),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={known} {args}",
        **variables,
    }
    mine = {name: value for name, value in every.items() if value is not None}
    user.write("i.yaml", json.dumps({"all": {"hosts": {"gpu01": mine}}}))


@dataclass(frozen=True, kw_only=True)
class Mending:
    """What the inventory says of a host, the remedy, and what it says then; ``sshd``: the server's own settings."""

    told: Remedy
    wrong: dict[str, Any]
    right: dict[str, Any] = field(default_factory=dict)
    sshd: dict[str, str] = field(default_factory=dict)


MENDINGS = [
    Mending(
        told=remedy("inventory/ssh_arguments.py", "remove it from ansible_ssh_common_args or ansible_ssh_extra_args"),
        wrong={"args": "-N"},
    ),
    Mending(
        told=remedy("inventory/ssh_arguments.py", "remove it from ansible_ssh_common_args or ansible_ssh_extra_args"),
        wrong={"ansible_ssh_extra_args": "-o RemoteCommand=ls"},
    ),
    Mending(
        told=remedy("hosts/ssh/proxy.py", "correct ansible_host or the name service"),
        wrong={"ansible_host": "no-such-host.invalid"},
    ),
    Mending(
        told=remedy("hosts/ssh/resolve.py", "use clusterddp_transport: auto"),
        wrong={"clusterddp_transport": "fabric", "args": "-o PKCS11Provider=/nope"},
        right={"clusterddp_transport": "auto", "args": "-o PKCS11Provider=/nope"},
    ),
    Mending(
        told=remedy("hosts/ssh/fabric_pipe.py", "set clusterddp_transport: openssh"),
        wrong={},
        right={"clusterddp_transport": "openssh"},
        sshd={"Ciphers": "chacha20-poly1305@openssh.com"},
    ),
]


@pytest.mark.parametrize("mending", MENDINGS, ids=lambda one: f"{one.told.path}: {one.wrong}")
def test_the_host_lets_in_whoever_follows_the_remedy(
    make_sshd: Callable[..., Sshd], user: User, mending: Mending
) -> None:
    sshd = make_sshd(**mending.sshd)
    inventory(user, sshd, **mending.wrong)
    first = type_line(user, EXEC)
    assert first.code
    assert mending.told.found(first.err), first.err
    inventory(user, sshd, **mending.right)
    done = type_line(user, EXEC)
    assert done.code == 0, done.err


UNLOCK = remedy("hosts/ssh/target.py", "`ssh-add {}` asks for it once, for all commands")


@pytest.mark.parametrize(("told", "way"), [(UNLOCK, "fabric"), (UNLOCK, "openssh")], ids=["fabric", "openssh"])
def test_a_passphrase_is_asked_for_once_by_the_told_command(
    make_sshd: Callable[..., Sshd], user: User, told: Remedy, way: str
) -> None:
    sshd = make_sshd()
    locked = make_key(user.home / "my key", passphrase="open sesame")
    (sshd.folder / "authorized_keys").write_text((user.home / "my key.pub").read_text())
    inventory(user, sshd, ansible_ssh_private_key_file=str(locked), clusterddp_transport=way)
    first = type_line(user, EXEC)
    (command,) = told.commands(first.err)
    answer = user.write("answer.sh", "#!/bin/sh\necho 'open sesame'\n")
    answer.chmod(0o700)
    agent = "eval $(ssh-agent) >/dev/null; trap 'kill $SSH_AGENT_PID' EXIT"
    asked = {"SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}
    done = type_line(user, f"{agent}; {command} && {EXEC} && {EXEC}", **asked)
    assert done.code == 0, done.err


NO_KEY = remedy("hosts/ssh/target.py", "{}; `ssh-keygen -t ed25519{}` makes a key, then `{}`")


def test_the_key_that_the_told_command_makes_lets_in_once_the_host_has_it(
    make_sshd: Callable[..., Sshd], user: User
) -> None:
    """The host's administrator puts it there: `ssh-copy-id` would want a password."""
    sshd = make_sshd()
    key = user.home / "own"
    config = user.home / "ssh_config"
    config.write_text(f"IdentityFile {key}\n")
    inventory(user, sshd, ansible_ssh_private_key_file=None, args=f"-F {config}")
    first = type_line(user, EXEC)
    make, copy = NO_KEY.commands(first.err)
    assert copy == f"ssh-copy-id -i {key} -p {sshd.port} {getpass.getuser()}@127.0.0.1"
    assert make.endswith(f" -f {key}")  # without it, ssh-keygen would write into the real home of who runs the tests
    made = type_line(user, f"{make} -N ''")
    assert made.code == 0, made.err
    (sshd.folder / "authorized_keys").write_text(key.with_name("own.pub").read_text())
    done = type_line(user, EXEC)
    assert done.code == 0, done.err


FINISHES = remedy("cli/down_tables.py", "`{}` again finishes the work")


def test_down_again_finishes_on_a_host_that_did_not_answer(make_sshd: Callable[..., Sshd], user: User) -> None:
    sshd = make_sshd()
    inventory(user, sshd)
    hosts = json.loads((user.folder / "i.yaml").read_text())
    hosts["all"]["hosts"]["here"] = {"ansible_connection": "local", "clusterddp_state": "~/other"}
    hosts["all"]["hosts"]["gpu01"]["clusterddp_state"] = str(user.home / "state")
    user.write("i.yaml", json.dumps(hosts))
    assert type_line(user, EXEC).code == 0
    sshd.stop()
    first = type_line(user, "clusterddp down -i i.yaml --purge --yes")
    assert first.code == 1, first.err
    (command,) = FINISHES.commands(first.err)
    assert command == "clusterddp down -i i.yaml --purge --yes"
    sshd.start()
    done = type_line(user, command)
    assert (done.code, "gpu01" in done.err) == (0, True), done.err
    assert not (user.home / "state").exists()


TAKE_KEY = remedy(
    "hosts/ssh/openssh_pipe.py", "`clusterddp up … --accept-new-host-keys`, or log in there once by hand with ssh"
)


@pytest.mark.parametrize(
    "way",
    [
        "clusterddp up i.yaml --skip torch --accept-new-host-keys",
        "ssh -F {config} -o BatchMode=yes -o StrictHostKeyChecking=accept-new jump true",
    ],
    ids=["up", "by hand"],
)
def test_the_unknown_key_of_a_jump_host_is_known_after_what_is_told(
    make_sshd: Callable[..., Sshd], user: User, way: str
) -> None:
    sshd, jump = make_sshd(), make_sshd()
    known, config = user.home / "known_hosts", user.home / "ssh_config"
    me = getpass.getuser()
    config.write_text(
        f"Host jump\n HostName 127.0.0.1\n Port {jump.port}\nHost gpu01 127.0.0.1\n ProxyJump jump\n"
        f"Host *\n User {me}\n IdentityFile {sshd.key}\n UserKnownHostsFile {known}\n"
    )
    inventory(user, sshd, clusterddp_transport="openssh", args=f"-F {config}", ansible_ssh_private_key_file=None)
    first = type_line(user, EXEC)
    assert first.code
    assert TAKE_KEY.found(first.err), first.err
    done = type_line(user, way.replace("{config}", str(config)))
    assert done.code == 0, done.err
    done = type_line(user, EXEC)
    assert done.code == 0, done.err
