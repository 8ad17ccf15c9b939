"""What each word of ansible_ssh_common_args means to us."""

from __future__ import annotations

import pytest

from clusterddp.errors import InventoryError
from clusterddp.inventory.ssh_arguments import parse_ssh_args

HONOURED = [
    (["-o", "ProxyJump=bastion"], {"proxyjump": ("bastion",)}),
    (["-oProxyJump=a,b"], {"proxyjump": ("a,b",)}),
    (["-J", "a@b:3"], {"proxyjump": ("a@b:3",)}),
    (["-Ja"], {"proxyjump": ("a",)}),
    (["-o", "ProxyCommand=ssh -W %h:%p b"], {"proxycommand": ("ssh -W %h:%p b",)}),
    (["-o", 'ProxyCommand="ssh -W %h:%p b"'], {"proxycommand": ("ssh -W %h:%p b",)}),
    (["-o", "ProxyCommand ssh -o A=b -W %h:%p b"], {"proxycommand": ("ssh -o A=b -W %h:%p b",)}),
    (["-o", "UserKnownHostsFile = /k"], {"userknownhostsfile": ("/k",)}),
    (["-oUserKnownHostsFile=/a /b", "-oUserKnownHostsFile=/c"], {"userknownhostsfile": ("/a /b",)}),
    (["-o", "stricthostkeychecking=no"], {"stricthostkeychecking": ("no",)}),
    (["-o", "ConnectTimeout=3"], {"connecttimeout": ("3",)}),
    (["-o", "ServerAliveInterval=30"], {"serveraliveinterval": ("30",)}),
    (["-i", "/a", "-i/b"], {"identityfile": ("/a", "/b")}),
    (["-p", "22", "-l", "me"], {"port": ("22",), "user": ("me",)}),
    (["-C"], {"compression": ("yes",)}),
    (["-qT"], {}),
    (["-o", "ControlMaster=auto", "-o", "ControlPersist=60s"], {}),
    (["-o", "PreferredAuthentications=publickey"], {}),
    (["-o", "ForwardAgent=no"], {}),
]


@pytest.mark.parametrize(("words", "options"), HONOURED)
def test_what_both_transports_honour(words: list[str], options: dict[str, tuple[str, ...]]) -> None:
    judged = parse_ssh_args(words, host="gpu01")
    assert dict(judged.options) == options
    assert judged.foreign == ()
    assert judged.unused == ()


@pytest.mark.parametrize(
    ("words", "foreign"),
    [
        (["-4"], ("-4",)),
        (["-o", "Ciphers=aes128-ctr"], ("-o Ciphers=aes128-ctr",)),
        (["-c", "aes128-ctr"], ("-c aes128-ctr",)),
        (["-o", "CertificateFile=/c"], ("-o CertificateFile=/c",)),
        (["-o", "PubkeyAuthentication=no"], ("-o PubkeyAuthentication=no",)),
        (["-b", "10.0.0.1"], ("-b 10.0.0.1",)),
        (["-q4C"], ("-4",)),
    ],
)
def test_what_only_the_ssh_program_honours(words: list[str], foreign: tuple[str, ...]) -> None:
    assert parse_ssh_args(words, host="gpu01").foreign == foreign


@pytest.mark.parametrize(
    "words",
    [
        ["-N"],
        ["-f"],
        ["-qN"],
        ["-W", "a:1"],
        ["-L", "1:a:1"],
        ["-o", "RemoteCommand=sh"],
        ["-o", "RequestTTY=force"],
        ["-t"],
        ["otherhost"],
        ["--", "otherhost"],
        ["-"],
        ["-o"],
        ["-J"],
    ],
)
def test_what_would_change_the_connection_is_refused_with_its_place(words: list[str]) -> None:
    with pytest.raises(InventoryError, match=r"^inventory.yaml:3: ssh argument .* of gpu01 cannot be used here; "):
        parse_ssh_args(words, host="gpu01", where="inventory.yaml:3")


@pytest.mark.parametrize(
    ("words", "unused"),
    [(["-A"], "agent forwarding"), (["-o", "ForwardAgent=yes"], "agent forwarding"), (["-X"], "X11 forwarding")],
)
def test_forwarding_is_told_and_never_passed_on(words: list[str], unused: str) -> None:
    judged = parse_ssh_args([*words, "-q"], host="gpu01")
    assert judged.unused == (unused,)
    assert judged.passed == ("-q",)


def test_words_reach_the_ssh_program_whole() -> None:
    words = ("-4", "-o", 'SetEnv="A=b c"', "-F", "/cfg")
    judged = parse_ssh_args([*words, "-J", "b"], host="gpu01")
    assert judged.passed == words
    assert judged.config_file == "/cfg"
