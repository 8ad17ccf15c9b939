"""Fixtures of several files here."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.hosts.ssh import Connector
from tests.integration.cli import User, nothing_left
from tests.integration.throwaway_sshd import Sshd, make_key
from tests.own_lab import own_lab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab import Lab


@pytest.fixture
def lab_left_clean(lab: Lab) -> Iterator[None]:
    """Each test leaves no process of ours on the shared hosts."""
    with nothing_left(lab):
        yield


@pytest.fixture(scope="module")
def lab_variants() -> dict[str, Any]:
    """How the hosts of `three` differ from plain ones, as arguments of `Lab`; a file may say so by a fixture."""
    return {}


@pytest.fixture(scope="module")
def three(lab_variants: dict[str, Any]) -> Iterator[Lab]:
    """Three hosts of a file's own; a test that breaks them heals them again."""
    with own_lab(3, **lab_variants) as made:
        yield made


@pytest.fixture(scope="module")
def user(three: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Somebody who has done `up` with all of `three`."""
    made = User(tmp_path_factory.mktemp("user"))
    made.write("train.py", "print('hi')\n")
    made.up(three.inventory)
    return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home of the operator, without an agent."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def connector(home: Path) -> Iterator[Connector]:
    """A connector of that home, closed when the test ends."""
    assert home.is_dir()
    made = Connector(connect_timeout=5)
    yield made
    made.close()


@pytest.fixture
def make_sshd(home: Path, tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Starts sshds that accept the operator's default key."""
    key = make_key(home / ".ssh" / "id_ed25519")
    made: list[Sshd] = []

    def make(**options: str) -> Sshd:
        made.append(Sshd(folder=tmp_path / f"sshd{len(made)}", key=key, options=options).start())
        return made[-1]

    yield make
    for sshd in made:
        sshd.stop()


@pytest.fixture
def sshd(make_sshd: Callable[..., Sshd], home: Path) -> Sshd:
    """An sshd that accepts the operator's key and whose own key is known."""
    made = make_sshd()
    (home / ".ssh" / "known_hosts").write_text(made.known_hosts_line)
    return made


@pytest.fixture
def start_master(home: Path) -> Iterator[Callable[[Sshd], subprocess.Popen[bytes]]]:
    """Start an OpenSSH ControlMaster of the user's to an sshd; its socket is the file `m` in the home."""
    made: list[subprocess.Popen[bytes]] = []

    def start(sshd: Sshd) -> subprocess.Popen[bytes]:
        known = home / ".ssh" / "known_hosts"
        base = ["ssh", "-F", "none", "-i", str(sshd.key), "-p", str(sshd.port), "-o", f"UserKnownHostsFile={known}"]
        made.append(subprocess.Popen([*base, "-M", "-N", "-S", str(home / "m"), "127.0.0.1"], start_new_session=True))
        while not (home / "m").exists():
            assert made[-1].poll() is None
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()
