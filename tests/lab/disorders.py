"""What can be wrong inside a lab host: its names, its clock, a process that dies; as methods of LabHost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tests.lab.options import LabUnavailable
from tests.lab.system import command

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from tests.lab.system import ProcessId

CLOCK = Path(__file__).with_name("clock.c")
SLOW = Path(__file__).with_name("slowdisk.c")
HUNG = Path(__file__).with_name("hungfs.py")  # started as root with a folder, it is a mount that never answers
NAMES = ("/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf")
NOBODY = "127.0.0.53"  # the firewall swallows questions to it; one on the network would be told unreachable


class _Inside(Protocol):
    """What the disorders need of a host."""

    name: str

    @property
    def init(self) -> ProcessId: ...
    def drop(self, port: int, proto: str) -> None: ...
    def run(self, argv: Sequence[str], *, user: str) -> subprocess.CompletedProcess[str]: ...


class Disorders:
    """Disorders of a running host. Names and clock stay wrong over a boot, until they are mended."""

    def name_is_loopback(self: _Inside) -> None:
        """The host's own name means 127.0.1.1, as Debian's installer leaves it."""
        hosts = _keep(self, "/etc/hosts")
        others = [line for line in hosts.read_text().splitlines() if self.name not in line.split()]
        hosts.write_text("\n".join(["127.0.0.1 localhost", f"127.0.1.1 {self.name}", *others]) + "\n")

    def silence_names(self: _Inside) -> None:
        """No name but its own is known here, and the name server never answers: a lookup takes its ten seconds."""
        _keep(self, "/etc/hosts").write_text(f"127.0.0.1 localhost {self.name}\n")
        _keep(self, "/etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n")
        _keep(self, "/etc/resolv.conf").write_text(f"nameserver {NOBODY}\n")
        self.drop(53, proto="udp")

    def mend_names(self: _Inside) -> None:
        """Names as the host came with them; the firewall's part is undone by `heal`."""
        for path in NAMES:
            kept = _inside(self, path + ".healthy")
            if kept.exists():
                shutil.copyfile(kept, _inside(self, path))

    def skew_clock(self: _Inside, seconds: float) -> None:
        """Set the wall clock wrong by so much; 0 sets it right.

        Programs that start after the first call have the wrong clock, and each further call moves it under them,
        as a step of the clock does. sshd starts a program for each connection, so all that comes through it is wrong.
        """
        clock = _inside(self, "/etc/lab-clock")
        if not clock.exists():
            clock.write_bytes(bytes(4096))
            _preload(self, "lab-clock.so", CLOCK)
        with clock.open("r+b") as file:  # in place: running programs have it mapped
            file.write(int(seconds * 1e9).to_bytes(8, "little", signed=True))

    def slow_disk(self: _Inside) -> None:
        """In programs that start from now on whatever waits for /home's disk (fsync) waits 1.5 s more."""
        _preload(self, "lab-slow-disk.so", SLOW)
        _inside(self, "/etc/lab-slow-disk").touch()

    def mend_disk(self: _Inside) -> None:
        """The disk as quick as it was."""
        _inside(self, "/etc/lab-slow-disk").unlink()

    def kill(self: _Inside, pid: int) -> None:
        """SIGKILL the process that has this pid on the host."""
        self.run(["kill", "-KILL", str(pid)], user="root")


def _inside(host: _Inside, path: str) -> Path:
    """A file of the running host, by a path of the operator's."""
    return Path(f"/proc/{host.init.pid}/root{path}")


def _preload(host: _Inside, name: str, source: Path) -> None:
    """Load a library into every program that starts there."""
    command(_compiler(), "-shared", "-fPIC", "-O1", "-o", str(_inside(host, f"/usr/lib/{name}")), str(source))
    loaded = _inside(host, "/etc/ld.so.preload")
    lines = loaded.read_text().splitlines() if loaded.exists() else []
    loaded.write_text("\n".join(dict.fromkeys([*lines, f"/usr/lib/{name}"])) + "\n")


def _keep(host: _Inside, path: str) -> Path:
    """A file of the host, of which a healthy copy is kept."""
    found, kept = _inside(host, path), _inside(host, path + ".healthy")
    if not kept.exists():
        shutil.copyfile(found, kept)
    return found


def _compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        raise LabUnavailable("a wrong clock needs a C compiler (cc, not installed)")
    return found
