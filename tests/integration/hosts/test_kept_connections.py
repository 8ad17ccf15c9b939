"""Connections kept by OpenSSH masters (`up --keep`): used instead of a login, and never worse than a login."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HostKeyError, UnreachableError, UsageError
from clusterddp.hosts.ssh import Connector, mux
from tests.integration.cli import user_of
from tests.integration.hosts.test_passphrase import RIGHT, lock
from tests.integration.throwaway_sshd import Sshd, host_entry, make_key, needs_sshd, read_all
from tests.lab.faults import children
from tests.lab.options import HostOptions
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterddp.inventory import HostEntry
    from tests.conftest import MakeLab

pytestmark = needs_sshd


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's runtime folder, of a short name; no master stays there."""
    folder = Path(tempfile.mkdtemp(prefix="run-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    for pid in masters(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)


def masters(folder: Path) -> list[int]:
    """The masters that have their control sockets there."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder / "clusterddp") in one.read_bytes():
                found.append(int(one.parent.name))
    return found


def sockets(folder: Path) -> list[Path]:
    return [path for path in (folder / "clusterddp").glob("*") if path.is_socket()]


def said(entry: HostEntry, command: str = "echo hi", *, keep: float | None = None, timeout: float = 5) -> bytes:
    """Run a command over a new connector, as each of our commands has one, and return its output."""
    with contextlib.closing(Connector(connect_timeout=timeout, keep=keep)) as connector:
        return read_all(connector.open(entry, command))


@pytest.fixture
def entry(sshd: Sshd, runtime: Path) -> HostEntry:
    """A host with a kept connection."""
    found = host_entry(sshd, transport="auto")
    assert said(found, keep=600) == b"hi\n"
    assert sshd.logins() == 1
    assert len(masters(runtime)) == 1
    return found


def test_later_connections_need_no_login(sshd: Sshd, entry: HostEntry, runtime: Path) -> None:
    with contextlib.closing(Connector()) as connector:
        pipe = connector.open(entry, "cat; echo oops >&2; exit 3")
        pipe.write(b"x" * 10_000)
        received = b""
        while len(received) < 10_000:
            received += pipe.read(1 << 16)
        assert pipe.exit_status() is None
        assert connector.notices == []
    assert said(entry, keep=600) == b"hi\n"
    with contextlib.closing(Connector()) as connector:
        pipe = connector.open(entry, "echo oops >&2; exit 3")
        assert (read_all(pipe), pipe.exit_status(), pipe.stderr()) == (b"", 3, "oops\n")
    assert sshd.logins() == 1
    assert len(masters(runtime)) == len(sockets(runtime)) == 1
    assert not list((runtime / "clusterddp").glob("*.lock"))
    assert (runtime / "clusterddp").stat().st_mode & 0o777 == 0o700


def test_all_hosts_at_once_find_theirs(sshd: Sshd, entry: HostEntry) -> None:
    for _ in range(5):
        with contextlib.closing(Connector()) as connector, ThreadPoolExecutor(8) as pool:
            together = threading.Barrier(8)

            def said_at_once(_: int, connector: Connector = connector, together: threading.Barrier = together) -> bytes:
                together.wait(30)
                return read_all(connector.open(entry, "echo hi"))

            assert list(pool.map(said_at_once, range(8))) == [b"hi\n"] * 8
    assert sshd.logins() == 1


def test_only_who_makes_one_asks_for_a_master_of_the_users_own(
    sshd: Sshd, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, program = tmp_path / "asked", tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >>{asked}\nexec {shutil.which("ssh")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    entry = host_entry(sshd, transport="auto", ssh_args=("-o", f"ControlPath={tmp_path}/own"))
    assert said(entry, keep=600) == b"hi\n"
    assert "-O check" in asked.read_text()
    asked.write_text("")
    assert said(entry) == b"hi\n"
    assert (sshd.logins(), "-O check" in asked.read_text()) == (1, False)
    os.kill(masters(runtime)[0], signal.SIGKILL)
    assert said(entry) == b"hi\n"
    assert (sshd.logins(), "-O check" in asked.read_text()) == (2, True)


def test_it_ends_when_it_was_not_used_for_so_long(sshd: Sshd, runtime: Path) -> None:
    entry = host_entry(sshd, transport="auto")
    assert said(entry, keep=1) == b"hi\n"
    wait_until("it ends", lambda: not masters(runtime) and not sockets(runtime))
    assert said(entry) == b"hi\n"


def test_another_duration_makes_another(sshd: Sshd, entry: HostEntry, runtime: Path) -> None:
    said(entry, keep=500)
    wait_until("the first ends", lambda: len(masters(runtime)) == 1)
    assert [path.name.split("-")[1] for path in sockets(runtime)] == ["500"]
    assert sshd.logins() == 2


def test_it_takes_nothing_more_once_it_is_ended_and_goes_with_its_last_session(
    sshd: Sshd, entry: HostEntry, runtime: Path
) -> None:
    with contextlib.closing(Connector()) as connector:
        pipe = connector.open(entry, "read line; echo got $line")
        assert connector.stop_keeping([entry]) == {"gpu01": ""}
        assert said(entry) == b"hi\n"
        assert sshd.logins() == 2
        pipe.write(b"it\n")
        assert read_all(pipe) == b"got it\n"
        assert connector.stop_keeping([entry]) == {}
    wait_until("it ends", lambda: not masters(runtime) and not sockets(runtime))


def new_key(home: Path) -> None:
    make_key(home / ".ssh" / "id_ecdsa", kind="ecdsa")


def edited_config(home: Path) -> None:
    (home / ".ssh" / "config").write_text("ForwardAgent no\n")


@pytest.mark.parametrize("change", [new_key, edited_config])
def test_it_is_ended_after_the_settings_have_changed(
    sshd: Sshd, entry: HostEntry, home: Path, runtime: Path, change: Callable[[Path], None]
) -> None:
    change(home)
    assert said(entry, keep=600) == b"hi\n"
    assert (sshd.logins(), len(masters(runtime))) == (2, 2)
    with contextlib.closing(Connector()) as connector:
        assert connector.stop_keeping([replace(entry, user="another")]) == {}
        assert connector.stop_keeping([replace(entry, ssh_args=("-o", "Compression=yes"))]) == {"gpu01": ""}
    wait_until("both end", lambda: not masters(runtime) and not sockets(runtime))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_master_that_is_dead_or_hangs_costs_a_login(
    sshd: Sshd, entry: HostEntry, runtime: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mux, "HELLO_TIMEOUT", 1.0)
    (pid,) = masters(runtime)
    os.kill(pid, number)
    assert said(entry) == b"hi\n"
    assert sshd.logins() == 2
    assert said(entry, keep=600) == b"hi\n"  # made anew
    assert said(entry) == b"hi\n"
    assert sshd.logins() == 3
    wait_until("the one that hung is gone", lambda: len(masters(runtime)) == 1)


def test_ending_one_that_hangs_is_not_waited_for(
    entry: HostEntry, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mux, "HELLO_TIMEOUT", 0.2)
    (pid,) = masters(runtime)
    os.kill(pid, signal.SIGSTOP)
    with contextlib.closing(Connector()) as connector:
        assert connector.stop_keeping([entry]) == {"gpu01": "the master does not answer"}
    wait_until("it is gone", lambda: not masters(runtime) and not sockets(runtime))


def server_of(sshd: Sshd) -> int:
    """The process of sshd that serves the connection."""
    assert sshd.process
    (found,) = children(sshd.process.pid)
    return found


def test_a_host_that_falls_silent_is_reported_as_without(
    sshd: Sshd, entry: HostEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mux, "SESSION_TIMEOUT", 0.2)
    os.kill(server := server_of(sshd), signal.SIGSTOP)
    assert said(entry) == b"hi\n"
    assert sshd.logins() == 2
    sshd.stop()
    with pytest.raises(UnreachableError, match="connection refused by 127"):
        said(entry)
    os.kill(server, signal.SIGKILL)


def test_a_host_that_comes_back_with_another_key_is_refused(sshd: Sshd, entry: HostEntry, runtime: Path) -> None:
    os.kill(server_of(sshd), signal.SIGKILL)
    sshd.stop()
    sshd.host_key.unlink()
    sshd.start()
    wait_until("the master has noticed", lambda: not masters(runtime))
    for keep in (None, 600):
        with pytest.raises(HostKeyError, match="has changed"):
            said(entry, keep=keep)
    assert sshd.logins() == 1


def test_only_the_target_that_it_was_made_for_is_served(
    sshd: Sshd, entry: HostEntry, home: Path, tmp_path: Path
) -> None:
    other = make_key(home / ".ssh" / "other")
    changes: list[dict[str, Any]] = [
        {"user": "nobody"},
        {"address": "localhost"},
        {"identity_file": other},
        {"ssh_args": ("-o", f"UserKnownHostsFile={tmp_path}/none")},
        {"ssh_args": ("-o", "HostKeyAlias=another")},
        {"ssh_args": ("-o", f"ProxyCommand=nc 127.0.0.1 {sshd.port}; false")},
        {"ssh_args": ("-J", "127.0.0.1:1")},
        {"ssh_args": ("-o", "KexAlgorithms=diffie-hellman-group14-sha256")},
    ]
    with contextlib.closing(Connector(connect_timeout=2)) as connector:
        resolver = connector._resolver
        own = resolver.route(entry).target.digest
        digests = {resolver.route(replace(entry, **change)).target.digest for change in changes}
        (home / ".ssh" / "config").write_text("RevokedHostKeys /dev/null\n")
        with contextlib.closing(Connector()) as later:
            digests.add(later._resolver.route(entry).target.digest)
        assert own == resolver.route(replace(entry, name="another")).target.digest
    assert own not in digests
    assert len(digests) == len(changes) + 1


def test_jump_hosts_are_kept_too(make_sshd: Callable[..., Sshd], home: Path, runtime: Path) -> None:
    jump, host, beside = make_sshd(), make_sshd(), make_sshd()
    (home / ".ssh" / "known_hosts").write_text("".join(one.known_hosts_line for one in (jump, host, beside)))
    entries = [
        host_entry(one, name=name, transport="auto", ssh_args=("-J", f"127.0.0.1:{jump.port}"))
        for name, one in (("gpu01", host), ("gpu02", beside))
    ]
    with contextlib.closing(Connector(keep=600)) as connector, ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda entry: read_all(connector.open(entry, "echo hi")), entries)) == [b"hi\n"] * 2
        assert connector.kept == {"gpu01": "", "gpu02": ""}
    for entry in entries:
        assert said(entry) == b"hi\n"
    assert (jump.logins(), host.logins(), beside.logins()) == (1, 1, 1)
    with contextlib.closing(Connector()) as connector:
        connector.stop_keeping(entries)
    wait_until("all end", lambda: not masters(runtime) and not sockets(runtime))


def test_a_live_master_of_a_jump_host_changes_no_kept_connection(
    make_sshd: Callable[..., Sshd], home: Path, runtime: Path, start_master: Callable[[Sshd], object]
) -> None:
    first, jump, host = hosts = make_sshd(), make_sshd(), make_sshd()
    (home / ".ssh" / "known_hosts").write_text("".join(one.known_hosts_line for one in hosts))
    bastion = f"HostName 127.0.0.1\nPort {jump.port}\nControlPath {home}/m\nProxyJump 127.0.0.1:{first.port}"
    (home / ".ssh" / "config").write_text(f"Host bastion\n{bastion}\n")
    start_master(jump)
    entry = host_entry(host, transport="auto", ssh_args=("-J", "bastion"))
    assert said(entry, keep=600) == b"hi\n"
    assert said(entry) == b"hi\n"
    assert host.logins() == 1
    with contextlib.closing(Connector()) as connector:
        assert connector.stop_keeping([entry])["gpu01"] == ""
    wait_until("all end", lambda: not masters(runtime) and not sockets(runtime))


def test_a_passphrase_is_asked_for_once_for_all_hosts(
    make_sshd: Callable[..., Sshd], home: Path, runtime: Path
) -> None:
    hosts = [make_sshd(), make_sshd()]
    key = home / ".ssh" / "id_ed25519"
    lock(key)
    (home / ".ssh" / "known_hosts").write_text("".join(one.known_hosts_line for one in hosts))
    entries = [host_entry(one, name=f"gpu0{number}", transport="auto") for number, one in enumerate(hosts)]
    asked = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return RIGHT if len(asked) > 1 else "wrong"

    with contextlib.closing(Connector(keep=600, ask=ask)) as connector, ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda entry: read_all(connector.open(entry, "echo hi")), entries)) == [b"hi\n"] * 2
        assert connector.kept == {"gpu00": "", "gpu01": ""}
    assert set(asked) == {f"Enter passphrase for key '{key}': "}
    assert len(asked) in (2, 3)  # the host that asked first gets the wrong one, the other that or the right one
    assert len(masters(runtime)) == 2


def test_a_second_factor_is_asked_for_once_a_morning(make_lab: MakeLab, tmp_path: Path, runtime: Path) -> None:
    twice = ("AuthenticationMethods publickey,password", "PasswordAuthentication yes")
    lab = make_lab(2, options=HostOptions(sshd=twice))
    hashed = subprocess.run(["openssl", "passwd", "-6", RIGHT], capture_output=True, text=True, check=True).stdout
    for host in lab.hosts:
        host.run(["usermod", "-p", hashed.strip(), host.users[0].name], user="root")
    user = user_of(lab, tmp_path, {"a.txt": "text\n"})
    user.env["XDG_RUNTIME_DIR"] = str(runtime)
    with user.start("up", "inventory.yaml", "--keep", "10m", terminal=True) as live:
        for count in (1, 2):
            live.wait_for("'s password: ", times=count)
            live.key(f"{RIGHT}\n")
        done = live.end()
    assert (done.code, done.out.count("'s password: ")) == (0, 2), done.out
    assert "gpu00, gpu01: connection kept until 10m00s after its last use, or `clusterddp down" in done.out
    assert RIGHT not in done.out
    assert sorted(user.run("exec", "hostname").lines) == ["[gpu00] gpu00", "[gpu01] gpu01"]
    down = user.run("down", "--yes")
    assert down.code == 0, down.err
    assert "gpu00, gpu01: the kept connection ends with the last command that uses it" in down.notes
    wait_until("all end", lambda: not masters(runtime) and not sockets(runtime))
    assert user.run("exec", "hostname").code == 125


def test_a_folder_that_others_can_enter_is_not_used(sshd: Sshd, entry: HostEntry, runtime: Path) -> None:
    (runtime / "clusterddp").chmod(0o711)
    assert said(entry) == b"hi\n"
    assert sshd.logins() == 2
    with pytest.raises(UsageError, match="is not yours alone"):
        Connector(keep=600)


def test_without_the_ssh_program_nothing_can_be_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home.is_dir()
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(UsageError, match="no ssh program"):
        Connector(keep=600)


def test_more_sessions_than_the_host_allows_are_logins(
    make_sshd: Callable[..., Sshd], home: Path, runtime: Path
) -> None:
    made = make_sshd(MaxSessions="2")
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line)
    entry = host_entry(made, transport="auto")
    said(entry, keep=600)
    with contextlib.closing(Connector()) as connector:
        pipes = [connector.open(entry, "cat") for _ in range(4)]
        for pipe in pipes:
            pipe.write(b"x")
            assert pipe.read(1) == b"x"
    assert made.logins() == 3
    assert len(masters(runtime)) == 1
