"""ControlMasters of the user's own: a live one carries our sessions, to a host or its jump host; none is made."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from clusterddp.hosts.ssh import config
from tests.integration.throwaway_sshd import Sshd, host_entry, needs_sshd, read_all

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from clusterddp.hosts.ssh import Connector

pytestmark = needs_sshd


@pytest.mark.parametrize("place", ["arguments", "configuration"])
def test_a_live_master_is_used_and_left_alone(
    sshd: Sshd, home: Path, connector: Connector, start_master: Callable[[Sshd], object], place: str
) -> None:
    control = home / "m"
    args = ("-o", f"ControlPath={control}", "-o", "ControlMaster=auto", "-o", "ControlPersist=60")
    if place == "configuration":
        (home / ".ssh" / "config").write_text("\n".join(word.replace("=", " ") for word in args[1::2]))
    entry = host_entry(sshd, transport="auto", ssh_args=args if place == "arguments" else ())
    connector.open(entry, "true")
    assert connector.notices == []  # no master yet, and none is made
    assert not control.exists()
    start_master(sshd)
    before = sshd.logins()
    assert read_all(connector.open(entry, "echo hi")) == b"hi\n"
    assert sshd.logins() == before
    assert connector.notices == ["gpu01: reached through the ssh program, for a live ControlMaster"]


@pytest.mark.parametrize("named", ["~/.ssh/config", "-F"])
def test_a_live_master_of_a_jump_host_is_used(
    make_sshd: Callable[..., Sshd], home: Path, connector: Connector, start_master: Callable[[Sshd], object], named: str
) -> None:
    jump, host = make_sshd(), make_sshd()
    (home / ".ssh" / "known_hosts").write_text(jump.known_hosts_line + host.known_hosts_line)
    file = home / ("other" if named == "-F" else ".ssh/config")
    file.write_text(f"Host bastion\n  HostName 127.0.0.1\n  Port {jump.port}\n  ControlPath {home}/m\n")
    start_master(jump)
    before = jump.logins()
    args = ("-J", "bastion", *(("-F", str(file)) if named == "-F" else ()))
    assert read_all(connector.open(host_entry(host, transport="auto", ssh_args=args), "echo hi")) == b"hi\n"
    assert jump.logins() == before


@pytest.mark.parametrize("transport", ["auto", "openssh"])
@pytest.mark.parametrize("place", ["configuration", "-S"])
def test_a_master_that_hangs_is_passed_over(
    sshd: Sshd,
    home: Path,
    connector: Connector,
    start_master: Callable[[Sshd], subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    transport: str,
    place: str,
) -> None:
    monkeypatch.setattr(config, "_CHECK_TIMEOUT", 0.5)
    if place == "configuration":
        (home / ".ssh" / "config").write_text(f"ControlPath {home}/m\n")
    start_master(sshd).send_signal(signal.SIGSTOP)
    entry = host_entry(sshd, transport=transport, ssh_args=("-S", f"{home}/m") if place == "-S" else ())
    assert read_all(connector.open(entry, "echo hi")) == b"hi\n"
