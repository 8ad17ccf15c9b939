"""Jump hosts, proxy commands, crowded and silent sshds."""

from __future__ import annotations

import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import UnreachableError
from clusterddp.hosts.ssh import Connector, UnknownHostKeyError
from tests.integration.throwaway_sshd import SSH, Sshd, free_port, host_entry, needs_sshd, read_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = needs_sshd


@pytest.fixture
def pair(make_sshd: Callable[..., Sshd], home: Path) -> tuple[Sshd, Sshd]:
    """A jump host and a host, both known."""
    jump, host = make_sshd(), make_sshd()
    (home / ".ssh" / "known_hosts").write_text(jump.known_hosts_line + host.known_hosts_line)
    return jump, host


def through(jump: Sshd) -> tuple[str, ...]:
    return ("-o", f"ProxyJump=127.0.0.1:{jump.port}")


@pytest.mark.parametrize("transport", SSH)
def test_a_jump_host_leads_there(pair: tuple[Sshd, Sshd], connector: Connector, transport: str) -> None:
    jump, host = pair
    pipe = connector.open(host_entry(host, transport=transport, ssh_args=through(jump)), "echo hi")
    assert read_all(pipe) == b"hi\n"
    assert (jump.logins(), host.logins()) == (1, 1)


@pytest.mark.parametrize("transport", SSH)
def test_two_jump_hosts_lead_there_in_order(
    make_sshd: Callable[..., Sshd], home: Path, connector: Connector, transport: str
) -> None:
    first, second, host = make_sshd(), make_sshd(), make_sshd()
    (home / ".ssh" / "known_hosts").write_text("".join(s.known_hosts_line for s in (first, second, host)))
    hops = ",".join(f"127.0.0.1:{jump.port}" for jump in (first, second))
    pipe = connector.open(host_entry(host, transport=transport, ssh_args=("-J", hops)), "echo hi")
    assert read_all(pipe) == b"hi\n"
    assert (first.logins(), second.logins(), host.logins()) == (1, 1, 1)


def test_one_login_on_the_jump_host_serves_all_behind_it(pair: tuple[Sshd, Sshd], connector: Connector) -> None:
    jump, host = pair
    host.stop()
    host.options["MaxStartups"] = "100"
    host.start()
    entries = [host_entry(host, name=f"gpu{n}", ssh_args=through(jump)) for n in range(15)]
    with ThreadPoolExecutor(15) as pool:
        pipes = list(pool.map(lambda entry: connector.open(entry, "echo hi"), entries))
    assert [read_all(pipe) for pipe in pipes] == [b"hi\n"] * 15
    assert (jump.logins(), host.logins()) == (1, 15)


def test_the_jump_host_s_key_is_judged_too(pair: tuple[Sshd, Sshd], home: Path, connector: Connector) -> None:
    jump, host = pair
    (home / ".ssh" / "known_hosts").write_text(host.known_hosts_line)
    with pytest.raises(UnknownHostKeyError, match=r"^gpu01: jump host 127\.0\.0\.1: the host key") as caught:
        connector.open(host_entry(host, ssh_args=through(jump)), "true")
    assert caught.value.known_hosts_line + "\n" == jump.known_hosts_line


def test_a_dead_jump_host_is_named_and_asked_once(connector: Connector) -> None:
    port = free_port()
    entries = [host_entry(name=f"gpu{n}", ssh_args=("-J", f"127.0.0.1:{port}")) for n in range(12)]

    def failure(n: int) -> str:
        with pytest.raises(UnreachableError) as caught:
            connector.open(entries[n], "true")
        return str(caught.value)

    with ThreadPoolExecutor(12) as pool:
        messages = list(pool.map(failure, range(12)))
    assert messages == [
        f"gpu{n}: jump host 127.0.0.1: connection refused by 127.0.0.1:{port};"
        " start sshd there, or correct ansible_port"
        for n in range(12)
    ]


@pytest.mark.parametrize("transport", SSH)
def test_what_the_jump_host_cannot_reach_is_said(pair: tuple[Sshd, Sshd], connector: Connector, transport: str) -> None:
    with pytest.raises(UnreachableError, match=r"^gpu01: .*(jump host cannot connect|open failed|forwarding failed)"):
        connector.open(host_entry(port=free_port(), transport=transport, ssh_args=through(pair[0])), "true")


def test_a_jump_host_of_ssh_config_is_used_by_its_alias(
    pair: tuple[Sshd, Sshd], home: Path, connector: Connector
) -> None:
    jump, host = pair
    (home / ".ssh" / "config").write_text(
        f"Host bastion\n  HostName 127.0.0.1\n  Port {jump.port}\n"
        f"Host inner\n  HostName 127.0.0.1\n  Port {host.port}\n  ProxyJump bastion\n"
    )
    for transport in ("auto", "openssh"):
        assert read_all(connector.open(host_entry(address="inner", transport=transport), "echo hi")) == b"hi\n"
    assert (jump.logins(), host.logins()) == (2, 2)
    assert connector.notices == []


RELAY = """
import os, socket, sys, threading
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := sock.recv(65536):
    os.write(1, data)
"""


@pytest.mark.parametrize("transport", SSH)
def test_a_proxy_command_carries_the_connection(
    sshd: Sshd, tmp_path: Path, connector: Connector, transport: str
) -> None:
    (tmp_path / "relay.py").write_text(RELAY)
    args = ("-o", f"ProxyCommand={sys.executable} -S {tmp_path}/relay.py %h %p")
    assert read_all(connector.open(host_entry(sshd, transport=transport, ssh_args=args), "echo hi")) == b"hi\n"


@pytest.mark.parametrize("transport", SSH)
def test_a_failing_proxy_command_is_quoted(sshd: Sshd, connector: Connector, transport: str) -> None:
    args = ("-o", "ProxyCommand=sh -c 'echo no way to %h >&2; exit 1'")
    with pytest.raises(UnreachableError, match=r"no way to 127\.0\.0\.1"):
        connector.open(host_entry(sshd, transport=transport, ssh_args=args), "true")


class Crowded:
    """A port that hangs up on its first visitors, as a crowded sshd does, then lets them through to `port`."""

    def __init__(self, port: int, hang_up: int) -> None:
        self.visits = 0
        self._to, self._hang_up = port, hang_up
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def stop(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while True:
            try:
                visitor, _ = self._server.accept()
            except OSError:
                return
            self.visits += 1
            if self.visits <= self._hang_up:
                visitor.close()
                continue
            beyond = socket.create_connection(("127.0.0.1", self._to))
            for ends in ((visitor, beyond), (beyond, visitor)):
                self._threads.append(threading.Thread(target=_pump, args=ends))
                self._threads[-1].start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        sink.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the relay's sockets end with the test
@pytest.mark.parametrize("transport", SSH)
@pytest.mark.parametrize(("hang_up", "visits"), [(2, 3), (99, 4)])
def test_a_crowded_sshd_is_asked_again_a_few_times(sshd: Sshd, transport: str, hang_up: int, visits: int) -> None:
    crowd = Crowded(sshd.port, hang_up)
    connector = Connector(accept_new_host_keys=True)
    try:
        entry = host_entry(transport=transport, port=crowd.port)
        if hang_up < visits:
            assert read_all(connector.open(entry, "echo hi")) == b"hi\n"
        else:
            with pytest.raises(UnreachableError, match="MaxStartups"):
                connector.open(entry, "true")
        assert crowd.visits == visits
    finally:
        connector.close()
        crowd.stop()


def test_a_port_that_says_nothing_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connector = Connector(connect_timeout=0.5)
        with pytest.raises(UnreachableError, match="did not answer as an SSH server in time"):
            connector.open(host_entry(port=server.getsockname()[1]), "true")
