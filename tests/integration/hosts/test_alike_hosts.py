"""`ssh -G` is asked once for hosts that are alike, and what is made of its answer is what it says of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.hosts.ssh import config
from clusterddp.hosts.ssh.config import SshConfig
from clusterddp.inventory.ssh_arguments import parse_ssh_args
from tests.integration.throwaway_sshd import needs_sshd

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from clusterddp.hosts.ssh.config import Settings

pytestmark = needs_sshd
ADDRESSES = ("gpu01", "gpu02", "gpu03", "login", "10.0.0.7", "GPU04")
ONE_BLOCK = "Host gpu*\n  User alice\n  ProxyCommand ssh -W %h:%p bastion\nHost * !login\n  Port 2222\n"
TABLE = [
    # configuration, arguments, how often ssh is asked for the addresses
    pytest.param("User alice\n", (), 2, id="one for all"),  # a name in capitals is asked about by itself
    pytest.param(ONE_BLOCK, (), 4, id="blocks of several"),
    pytest.param("Host gpu02\n  HostName 10.0.0.2\nHost *\n User al\n", (), 3, id="one has an address"),
    pytest.param("Host gpu*\n  HostName %h.example.com\n", (), 6, id="a name made of the host's"),
    pytest.param("Host gpu*\n  HostName GPU01\n", (), 4, id="a name that one of them has"),
    pytest.param('Host gpu*\n  HostName "gpu01"\n', (), 4, id="the same in quotes"),
    pytest.param("Match host gpu01\n  User bob\nMatch all\n  Port 7\n", (), 6, id="Match"),
    pytest.param("Include more.conf\nUser alice\n", (), 3, id="an included file"),
    pytest.param("Host\tgpu01\n\tHostName\t10.0.0.1\nHost\t=\tgpu02\n\tPort=7\n", (), 4, id="tabs"),
    pytest.param("Host 'gpu01'\n  User al\n", (), 6, id="quotes"),
    pytest.param('"Host" gpu01\n  User al\n', (), 6, id="a quoted keyword"),
    pytest.param("Include\tmore.conf\nUser alice\n", (), 3, id="an included file behind a tab"),
    pytest.param('Include "conf d/more.conf"  # it\'s there\nUser alice\n', (), 3, id="a quoted file"),
    pytest.param('Include "conf d/more.conf" more.conf\nUser alice\n', (), 3, id="two included files"),
    pytest.param("User alice\n", ("-o", "ControlPath=~/%h"), 6, id="a token in the arguments"),
]


@pytest.mark.parametrize(("text", "arguments", "times"), TABLE)
def test_hosts_that_are_alike_are_asked_about_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: str, arguments: tuple[str, ...], times: int
) -> None:
    (home / ".ssh" / "config").write_text(text)
    (home / ".ssh" / "conf d").mkdir()
    for file in ("more.conf", "conf d/more.conf"):
        (home / ".ssh" / file).write_text("Host login\n  User root\n")
    args = parse_ssh_args(arguments, host="gpu01")
    alone = [SshConfig().settings(address, args, ["-p", "22"]) for address in ADDRESSES]
    asked = []
    query = config._query_ssh

    def counted(argv: Sequence[str], address: str) -> Settings:
        asked.append(address)
        return query(argv, address)

    monkeypatch.setattr(config, "_query_ssh", counted)
    together = SshConfig()
    assert [together.settings(address, args, ["-p", "22"]) for address in ADDRESSES] == alone
    assert len(asked) == times
