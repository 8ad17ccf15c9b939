"""A lab host's disk: the upper layer of its overlay, laid out before the host boots.

The layer holds what makes the host a machine of its own: accounts, names, keys, sshd's
configuration. Writing here is right only while the host is off.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.system import command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.lab.options import HostOptions

FIRST_UID = 20001
HOST_KEY = "/etc/ssh/lab_host_key"
SSHD_CONFIG = """\
Port 22
HostKey {key}
AuthorizedKeysFile .ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
PidFile none
LogLevel VERBOSE
Subsystem sftp internal-sftp
MaxStartups {startups}
MaxSessions {sessions}
"""
# Quoted the same in every shell, and a trap for whoever parses a host's stdout.
NOISE = "Welcome to the cluster. Maintenance on Sunday; {} $HOME is nearly full."
WARNING = "echo warning: a noisy rc file"
RC_FILES = {
    "bash": ".bashrc",
    "csh": ".cshrc",
    "tcsh": ".cshrc",
    "fish": ".config/fish/config.fish",
    "zsh": ".zshenv",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """An account that every host of a lab has, with the same uid everywhere."""

    name: str
    uid: int

    @property
    def home(self) -> str:
        return "/root" if self.uid == 0 else f"/home/{self.name}"


ROOT = User(name="root", uid=0)


class Disk:
    """The upper layer of one host.

    Attributes:
        upper: The layer's folder on the operator's disk.
    """

    def __init__(self, upper: Path) -> None:
        self.upper = upper

    def folder(self, path: str | Path, more_mode: int = 0) -> Path:
        """Have a folder in the layer, each with owner and mode of the one it covers."""
        here = self.upper
        for index, part in enumerate(Path(path).parts[1:], 2):
            here /= part
            if not here.is_dir():
                here.mkdir()
                self._like(here, Path(*Path(path).parts[:index]))
        if more_mode:
            here.chmod(here.stat().st_mode | more_mode)
        return here

    @staticmethod
    def _like(here: Path, below: Path) -> None:
        if below.is_dir():
            found = below.stat()
            os.chown(here, found.st_uid, found.st_gid)
            here.chmod(found.st_mode & 0o7777)

    def write(self, path: str, text: str, *, mode: int = 0o644, user: User = ROOT) -> Path:
        """Write a file into the layer."""
        target = self.folder(Path(path).parent) / Path(path).name
        target.write_text(text)
        target.chmod(mode)
        os.chown(target, user.uid, user.uid)
        return target

    def hide(self, path: str) -> None:
        """Make a folder empty on the host whatever the operator's machine has there."""
        if not any(str(needed).startswith(f"{path}/") for needed in needed_paths()):
            os.setxattr(self.folder(path), "trusted.overlay.opaque", b"y")


def needed_paths() -> list[Path]:
    """Where the operator's interpreter and its packages lie: the hosts run workers with them."""
    found = [Path(sys.executable), Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve()]
    return sorted({path for path in found if path != Path("/")})


def foreign_mounts() -> list[str]:
    """Interpreter folders that an overlay of `/` lacks: on another file system, or where a host has its own folder."""
    device = Path("/").stat().st_dev
    folders = {path if path.is_dir() else path.parent for path in needed_paths()}
    return sorted(str(folder) for folder in folders if folder.stat().st_dev != device or _covered(folder))


def _covered(folder: Path) -> bool:
    return any(folder.is_relative_to(own) for own in ("/tmp", "/run", "/home"))


def lay_out(disk: Disk, name: str, users: Sequence[User], options: HostOptions, names: Mapping[str, str]) -> None:
    """Write everything but keys and homes: accounts, names, sshd's configuration, passable folders."""
    _accounts(disk, users, options)
    _names(disk, name, names)
    lines = "".join(f"{line}\n" for line in options.sshd)
    config = SSHD_CONFIG.format(key=HOST_KEY, startups=options.max_startups, sessions=options.max_sessions)
    disk.write("/etc/ssh/lab_sshd_config", lines + config + _penalties())
    for path in ("/home", "/var/tmp"):
        disk.hide(path)
    # The interpreter may lie below a folder that only root can enter, such as /root.
    for parent in {parent for path in needed_paths() for parent in path.parents if parent != Path("/")}:
        real = parent.resolve()
        if not real.stat().st_mode & 0o001:
            disk.folder(real, more_mode=0o001)


def _accounts(disk: Disk, users: Sequence[User], options: HostOptions) -> None:
    shell = options.shell_path()
    passwd = "".join(f"{u.name}:x:{u.uid}:{u.uid}:{u.name}:{u.home}:{shell}\n" for u in users)
    group = "".join(f"{u.name}:x:{u.uid}:\n" for u in users)
    # '*' and not '!': sshd refuses a locked account.
    shadow = "".join(f"{u.name}:*:19000:0:99999:7:::\n" for u in users)
    disk.write("/etc/passwd", Path("/etc/passwd").read_text() + passwd)
    disk.write("/etc/group", Path("/etc/group").read_text() + group)
    disk.write("/etc/shadow", Path("/etc/shadow").read_text() + shadow, mode=0o600)


def _names(disk: Disk, name: str, names: Mapping[str, str]) -> None:
    peers = "".join(f"{address} {peer}\n" for peer, address in names.items())
    disk.write("/etc/hosts", f"127.0.0.1 localhost\n::1 localhost\n{peers}")
    disk.write("/etc/hostname", f"{name}\n")
    disk.write("/etc/machine-id", f"{name.encode().hex():0>32.32}\n")
    disk.write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    disk.write("/etc/resolv.conf", "")


def _penalties() -> str:
    """From 9.8 on sshd shuts out an address after failures, which tests cause on purpose."""
    version = command("sh", "-c", "ssh -V 2>&1").removeprefix("OpenSSH_").split("p")[0]
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    return "PerSourcePenalties no\n" if numbers >= (9, 8) else ""


def make_home(home: Path, user: User, options: HostOptions, files: Mapping[str, str]) -> None:
    """Make a user's home (in a layer, or in the folder that all hosts share) with private files of such texts."""
    if home.exists():
        return
    if Path("/etc/skel").is_dir():
        shutil.copytree("/etc/skel", home, symlinks=True)
    for name, text in files.items():
        for folder in reversed(Path(name).parents[:-1]):
            (home / folder).mkdir(mode=0o700, exist_ok=True)
        (home / name).write_text(text)
        (home / name).chmod(0o600)
    if options.noisy:
        # Redirections differ between shells, so sh writes the line on stderr.
        noisy = home / RC_FILES.get(options.shell, ".profile")
        noisy.parent.mkdir(parents=True, exist_ok=True)
        noisy.write_text(f"echo '{NOISE}'\nsh -c '{WARNING} >&2'\n")
    for path in (home, *home.rglob("*")):
        os.chown(path, user.uid, user.uid, follow_symlinks=False)
    home.chmod(0o750)


def new_host_key(disk: Disk) -> str:
    """Give the host a fresh host key and return the public half (`ssh-ed25519 AAAA…`)."""
    target = disk.folder("/etc/ssh") / Path(HOST_KEY).name
    target.unlink(missing_ok=True)
    command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(target))
    return " ".join(target.with_suffix(".pub").read_text().split()[:2])
