"""Byte pipes over real sshd: all openers alike, keys judged strictly, nothing left behind."""

from __future__ import annotations

import errno
import getpass
import os
import re
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fabric
import pytest

from clusterddp.errors import UnreachableError, UsageError
from clusterddp.hosts.connections import Connections
from clusterddp.hosts.ssh import Connector, UnknownHostKeyError
from tests.integration.throwaway_sshd import SSH, Sshd, free_port, host_entry, make_key, needs_sshd, read_all
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry

pytestmark = needs_sshd
ALL = [*SSH, "local"]


def way(sshd: Sshd, transport: str) -> HostEntry:
    if transport == "local":
        return host_entry(connection="local")
    return host_entry(sshd, transport=transport)


def children() -> set[str]:
    """The processes we started, dead ones not yet waited for among them."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
    )
    lines = [line for line in listed.stdout.splitlines() if " ps " not in line]
    return {re.sub(r"\d+ of \d+-\d+ startups", "", line) for line in lines}  # sshd counts its own in its name


@pytest.mark.parametrize("transport", ALL)
def test_bytes_go_both_ways(sshd: Sshd, connector: Connector, transport: str) -> None:
    pipe = connector.open(way(sshd, transport), "head -c 300; echo oops >&2; exit 3")
    every = bytes(range(256)) + b"\r\n" * 22
    pipe.write(every)
    assert read_all(pipe) == every
    assert pipe.exit_status() == 3
    pipe.close()
    assert pipe.stderr() == "oops\n"
    assert pipe.read(10) == b""
    with pytest.raises(OSError, match="closed"):
        pipe.write(b"x")


@pytest.mark.parametrize("transport", ALL)
def test_ten_megabytes_echo_without_deadlock(sshd: Sshd, connector: Connector, transport: str) -> None:
    pipe = connector.open(way(sshd, transport), "exec cat")
    data = os.urandom(1 << 20) * 10
    writer = threading.Thread(target=pipe.write, args=(data,))
    writer.start()
    received = bytearray()
    while len(received) < len(data):
        received += pipe.read(1 << 16)
    writer.join()
    assert received == data


@pytest.mark.parametrize("transport", ALL)
def test_a_flood_on_stderr_does_not_stop_stdout(sshd: Sshd, connector: Connector, transport: str) -> None:
    pipe = connector.open(way(sshd, transport), "head -c 5000000 /dev/zero | tr '\\0' e >&2; echo done")
    assert read_all(pipe) == b"done\n"
    pipe.close()
    assert len(pipe.stderr()) == 64 * 1024


@pytest.mark.parametrize("transport", ALL)
def test_closing_wakes_a_reader(sshd: Sshd, connector: Connector, transport: str) -> None:
    pipe = connector.open(way(sshd, transport), "echo ready; exec sleep 60")
    assert pipe.read(6) == b"ready\n"
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(pipe.read, 1)
        pipe.close()
        assert reading.result(timeout=10) == b""
    assert pipe.exit_status() != 0


@pytest.mark.parametrize("transport", ALL)
def test_nothing_of_it_is_left_after_close(sshd: Sshd, transport: str) -> None:
    connector = Connector(connect_timeout=5)
    before = (set(threading.enumerate()), children())
    for _ in range(3):
        assert connector.open(way(sshd, transport), "echo ready; exec sleep 60").read(6) == b"ready\n"
    connector.close()
    assert (set(threading.enumerate()), children()) == before
    with pytest.raises(UnreachableError, match="ending"):
        connector.open(way(sshd, transport), "true")


@pytest.mark.parametrize("transport", ["openssh", "local"])
def test_a_child_has_a_session_of_its_own(
    sshd: Sshd, connector: Connector, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    start = subprocess.Popen.__init__

    def watched(self: subprocess.Popen[bytes], *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        started.append(self.pid)

    monkeypatch.setattr(subprocess.Popen, "__init__", watched)
    connector.open(way(sshd, transport), "exec cat")
    assert started
    assert [os.getsid(pid) for pid in started] == started


@pytest.mark.parametrize("transport", SSH)
def test_a_closed_port_is_said_quietly(
    sshd: Sshd, connector: Connector, transport: str, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    with pytest.raises(UnreachableError, match=rf"gpu01: .*refused.*{port}|gpu01: .*{port}.*refused"):
        connector.open(host_entry(sshd, transport=transport, port=port), "true")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("transport", SSH)
def test_a_name_nobody_knows_is_said(connector: Connector, transport: str) -> None:
    with pytest.raises(UnreachableError, match=r"resolve.* nowhere\.invalid"):
        connector.open(host_entry(transport=transport, address="nowhere.invalid"), "true")


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "-oProxyCommand=touch"},
        {"user": "-oProxyCommand=touch"},
        {"address": "a;touch"},
        {"address": "$(touch)"},
        {"user": "a b"},
    ],
)
@pytest.mark.parametrize("transport", SSH)
def test_a_name_that_could_be_an_option_is_refused(
    connector: Connector, transport: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"^inventory.yaml:3: .* is not a name"):
        connector.open(host_entry(transport=transport, **changes), "true")


@pytest.mark.parametrize("transport", SSH)
def test_no_locale_of_ours_reaches_the_host(
    make_sshd: Callable[..., Sshd], home: Path, connector: Connector, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_SECRET", "ours")
    made = make_sshd(AcceptEnv="LC_* LANG")
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line)
    (home / ".ssh" / "config").write_text("Host *\n  SendEnv LC_*\n")
    assert b"LC_SECRET" not in read_all(connector.open(way(made, transport), "env"))


@pytest.mark.parametrize("transport", SSH)
def test_a_connection_lost_in_the_middle_ends_the_stream(sshd: Sshd, connector: Connector, transport: str) -> None:
    pipe = connector.open(way(sshd, transport), "echo here; read line; kill -9 $PPID; exec sleep 60")
    assert pipe.read(5) == b"here\n"
    pipe.write(b"go\n")
    assert pipe.read(5) == b""
    assert pipe.exit_status() in (None, 255)


def test_a_pipe_over_a_connection_of_the_caller_s_leaves_it_open(sshd: Sshd, home: Path, connector: Connector) -> None:
    theirs = fabric.Connection("127.0.0.1", user=getpass.getuser(), port=sshd.port)
    pipe = connector.over(theirs, "echo hi")
    assert read_all(pipe) == b"hi\n"
    pipe.close()
    assert theirs.is_connected
    theirs.close()
    (home / ".ssh" / "known_hosts").unlink()
    with pytest.raises(UnknownHostKeyError):
        connector.over(fabric.Connection("127.0.0.1", user=getpass.getuser(), port=sshd.port), "true")


@pytest.mark.parametrize("transport", SSH)
def test_a_key_whose_name_has_a_percent_sign_logs_in(
    sshd: Sshd, home: Path, connector: Connector, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setenv("KEY", "100%bare")
    key = make_key(home / "100%bare")
    (sshd.folder / "authorized_keys").write_text(key.with_name("100%bare.pub").read_text())
    (home / ".ssh" / "config").write_text(f"IdentityFile {home}/${{KEY}}\n")
    assert read_all(connector.open(way(sshd, transport), "echo hi")) == b"hi\n"


def kill_helper(host: Host) -> None:
    """End a host's helper, as where the host has no memory left; returns once that is noticed here."""
    os.kill(host.hello.pid, signal.SIGKILL)
    wait_until("it is lost", lambda: host.lost)


@pytest.mark.parametrize("transport", SSH)
def test_a_lost_connection_that_is_opened_anew_leaves_nothing(sshd: Sshd, connector: Connector, transport: str) -> None:
    opened = Connections(connector, print)
    counts = []
    for _ in range(3):
        host = opened.open(way(sshd, transport))
        host.ping()
        counts.append((len(list(Path("/proc/self/fd").iterdir())), len(children()), threading.active_count()))
        kill_helper(host)
    opened.close_hosts()
    assert counts[1] == counts[2]


def test_what_this_machine_has_no_files_for_is_unreachable(
    connector: Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def popen(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(UnreachableError, match="gpu01: cannot be dialled from this machine: Too many"):
        connector.open(host_entry(connection="local"), "true")
