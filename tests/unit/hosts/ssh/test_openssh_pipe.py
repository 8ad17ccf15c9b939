"""What the ssh program's last words mean, and what we say to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterddp.errors import AuthenticationError, ClusterddpError, HostKeyError, UnreachableError, UsageError
from clusterddp.hosts.ssh.openssh_pipe import _error_for, _options
from clusterddp.hosts.ssh.pipes import DroppedError
from clusterddp.hosts.ssh.target import Target, login_remedy

TARGET = Target(
    name="gpu01",
    host="10.0.0.1",
    alias="gpu01",
    port=2222,
    user="me",
    key_names=("[10.0.0.1]:2222", "10.0.0.1"),
    key_files=(Path("/k/id"),),
    named_key_count=1,
    only_named_keys=True,
    agent=True,
    known_hosts=(Path("/k/known"), Path("/k/known 2")),
    system_hosts=(Path("/etc/known"),),
    accept_new=False,
    connect_timeout=7,
)

CHANGED = """@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
Add correct host key in /k/known to get rid of this message.
Offending ED25519 key in /k/known:3
  remove with:
  ssh-keygen -f "/k/known" -R "[10.0.0.1]:2222"
Host key verification failed.
"""


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("ssh: Could not resolve hostname x: Name or service not known\n", UnreachableError, "Could not resolve"),
        ("ssh: connect to host x port 1: Connection refused\n", UnreachableError, "Connection refused"),
        (
            "ssh: connect to host jump port 22: No route to host\nConnection closed by UNKNOWN port 65535\n",
            UnreachableError,
            "connect to host jump port 22",
        ),
        ("Connection timed out during banner exchange\n", UnreachableError, "timed out"),
        ("kex_exchange_identification: Connection closed by remote host\n", DroppedError, "MaxStartups"),
        ("me@10.0.0.1: Permission denied (publickey).\n", AuthenticationError, "ssh-copy-id -i /k/id -p 2222 me@"),
        ("Received disconnect: Too many authentication failures\n", AuthenticationError, "Too many"),
        (CHANGED, HostKeyError, "known one is in /k/known:3; if the host was set up anew: ssh-keygen -f /k/known -R"),
        ("command-line: line 0: Bad configuration option: foo\n", UsageError, "Bad configuration option"),
        ("", UnreachableError, "said nothing"),
    ],
)
def test_errors_are_told_apart(said: str, kind: type[ClusterddpError], words: str) -> None:
    error = _error_for(said, TARGET, "ssh", late=False)
    assert type(error) is kind
    assert words in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("files", "keys", "remedy"),
    [
        (["id"], True, "else `ssh-copy-id -i {0}/id -p 2222 me@10.0.0.1` has it take the key"),
        (["id"], False, "else `ssh-copy-id -i {0}/id -p 2222 me@10.0.0.1` has it take the key"),
        ([], True, "else `ssh-copy-id -p 2222 me@10.0.0.1` has it take the key"),
        ([], False, "`ssh-keygen -t ed25519` makes a key, then `ssh-copy-id -p 2222 me@10.0.0.1`"),
        (
            ["gone"],
            True,
            "`ssh-keygen -t ed25519 -f {0}/gone` makes a key, then `ssh-copy-id -i {0}/gone -p 2222 me@10.0.0.1`",
        ),
        (["a.pub"], True, "else see that your agent holds the private key of {0}/a.pub, and that the host takes it"),
        (["a.pub", "id"], True, "else `ssh-copy-id -i {0}/id -p 2222 me@10.0.0.1` has it take the key"),
    ],
)
def test_who_has_no_key_is_told_how_to_make_one(tmp_path: Path, files: list[str], keys: bool, remedy: str) -> None:  # noqa: FBT001
    (tmp_path / "id").touch()
    target = replace(TARGET, key_files=tuple(tmp_path / name for name in files))
    user = "if your user there is not me, set ansible_user; "
    assert login_remedy(target, keys=keys) == user + remedy.format(tmp_path)


def test_our_words_come_whole_and_strict() -> None:
    words = _options(TARGET)
    for expected in (
        "-oBatchMode=yes",
        "-oStrictHostKeyChecking=yes",
        "-oForwardAgent=no",
        "-oConnectTimeout=7",
        "-oIdentitiesOnly=yes",
        '-oUserKnownHostsFile="/k/known" "/k/known 2"',
    ):
        assert expected in words
    assert words[-6:] == ["-i", "/k/id", "-p", "2222", "-l", "me"]


def test_ssh_replaces_no_token_in_the_name_of_a_known_hosts_file() -> None:
    assert '-oUserKnownHostsFile="/k/100%%x"' in _options(replace(TARGET, known_hosts=(Path("/k/100%x"),)))
