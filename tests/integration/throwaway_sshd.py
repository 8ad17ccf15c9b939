"""A real sshd of a test's own on a free loopback port: the cheap fixture. Labs are for what needs machines."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.inventory import HostEntry

if TYPE_CHECKING:
    from clusterddp.hosts.ssh import BytePipe

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
SSH = ["fabric", "openssh"]  # the ways to a host over SSH
needs_sshd = pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="OpenSSH is not installed")


def make_key(path: Path, *, passphrase: str = "", kind: str = "ed25519") -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


@dataclass
class Sshd:
    """One sshd; it accepts the key `key`."""

    folder: Path
    key: Path
    options: dict[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> Sshd:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.host_key.exists():
            make_key(self.host_key)
        (self.folder / "authorized_keys").write_text(Path(f"{self.key}.pub").read_text())
        settings = {
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"),
            "HostKey": str(self.host_key),
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "LogLevel": "VERBOSE",
            "ListenAddress": "127.0.0.1",
            **self.options,
        }
        self.port = self.port or free_port()
        config = self.folder / "sshd_config"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        assert SSHD
        self.process = subprocess.Popen(
            [SSHD, "-D", "-E", str(self.log), "-p", str(self.port), "-f", str(config)], start_new_session=True
        )
        self._wait_until_it_answers()
        return self

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.process = None

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    @property
    def log(self) -> Path:
        return self.folder / "sshd.log"

    @property
    def known_hosts_line(self) -> str:
        kind, blob, *_ = Path(f"{self.host_key}.pub").read_text().split()
        return f"[127.0.0.1]:{self.port} {kind} {blob}\n"

    def logins(self) -> int:
        return self.log.read_text().count("Accepted publickey")

    def _wait_until_it_answers(self) -> None:
        assert self.process
        while self.process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 5) as sock:
                    assert sock.recv(4) == b"SSH-"
                    return
            except ConnectionRefusedError:
                continue
        pytest.fail(f"sshd did not start: {self.log.read_text()}")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def host_entry(sshd: Sshd | None = None, **changes: Any) -> HostEntry:
    """An inventory's host that is that sshd."""
    values: dict[str, Any] = {
        "name": "gpu01",
        "address": "127.0.0.1",
        "port": sshd.port if sshd else None,
        "user": getpass.getuser(),
        "transport": "fabric",
        "where": "inventory.yaml:3",
        **changes,
    }
    return HostEntry(**values)


def read_all(pipe: BytePipe) -> bytes:
    """What comes until the other end closes."""
    return b"".join(iter(lambda: pipe.read(65536), b""))
