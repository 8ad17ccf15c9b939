"""What can be chosen for a lab host, and whether this machine can carry a lab at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TOOLS = (
    "ip", "unshare", "nsenter", "setsid", "setpriv", "prlimit", "mount", "umount", "pivot_root",
    "sshd", "ssh", "ssh-keygen", "iptables", "tc",
)  # fmt: skip
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LabUnavailable(RuntimeError):
    """This machine cannot carry a lab (or this variant of it), and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostOptions:
    """How one lab host differs from a plain one.

    Attributes:
        shell: Login shell of every user: a program's name (`bash`, `sh`, `csh`, `fish`).
        noisy: The shell's rc file prints on stdout and stderr also for a remote command.
        max_startups: sshd's `MaxStartups`; its own default `10:30:100` refuses a crowd.
        max_sessions: sshd's `MaxSessions`: channels a connection may open.
        limits: ulimits of everything on the host: names of `prlimit` (`nofile`, `nproc`, `as` …) to values.
        sshd: Further lines of sshd's configuration; they come first, and sshd takes the first of a kind.
        vars: Further variables of the host in the inventory.
    """

    shell: str = "bash"
    noisy: bool = False
    max_startups: str = "300:30:600"
    max_sessions: int = 10
    limits: Mapping[str, int | str] = field(default_factory=dict)
    sshd: tuple[str, ...] = ()
    vars: Mapping[str, object] = field(default_factory=dict)

    def shell_path(self) -> str:
        """Where the login shell lies; LabUnavailable when it is not installed."""
        found = shutil.which(self.shell, path=SYSTEM_PATH)
        if found is None:
            raise LabUnavailable(f"no lab host with login shell {self.shell}: it is not installed")
        return found


@cache
def why_not() -> str | None:
    """The reason why no lab can run on this machine; None when one can."""
    if sys.platform != "linux":
        return "the lab needs Linux"
    if os.geteuid() != 0:
        return "the lab needs root (network and mount namespaces)"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=SYSTEM_PATH) is None]
    if missing:
        return f"the lab needs {', '.join(missing)} (not installed)"
    return _trial()


def _trial() -> str | None:
    """Try the two things a container often forbids: namespaces and an overlay of `/`."""
    trial = f"cddp0-trial-{os.getpid()}"
    with tempfile.TemporaryDirectory(dir=disk_root()) as folder:
        for name in ("upper", "work", "root"):
            Path(folder, name).mkdir()
        mount = "mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root"
        unshare = "unshare --mount --uts --pid --ipc --net --fork"
        script = f"set -e; ip netns add {trial}; ip netns del {trial}; {unshare} {mount}"
        argv = ["sh", "-c", script]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().replace("\n", " ")
        return f"the lab needs namespaces and overlay mounts, which this machine refuses: {said}"
    return None


@cache
def disk_root() -> Path:
    """A folder on a file system that can carry an overlay's upper layer (not an overlay itself)."""
    wanted = os.environ.get("CLUSTERDDP_LAB_DIR")
    for candidate in filter(None, (wanted, "/var/tmp", "/tmp", "/dev/shm")):
        argv = ["stat", "-f", "-c", "%T", candidate]
        kind = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
        if kind and kind != "overlayfs":
            return Path(candidate)
    raise LabUnavailable("the lab needs a folder on a real disk: set CLUSTERDDP_LAB_DIR to one")
