"""One lab host: power, commands inside it, a look at its processes and its disk."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import network
from tests.lab.disk import ROOT, Disk, User, foreign_mounts, lay_out, make_home, new_host_key
from tests.lab.disorders import Disorders
from tests.lab.faults import Faults, children
from tests.lab.stalls import Stalls
from tests.lab.system import (
    LabError,
    ProcessId,
    command,
    inside_network,
    kill_and_wait,
    ssh_banner,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.lab.network import Nic
    from tests.lab.options import HostOptions

INIT = Path(__file__).with_name("hostinit.sh")
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")
# A mount cannot become read-only while a file is open for writing in it. So it does before processes can see it.
_READ_ONLY = """
aside=$(mktemp -d)
mount --bind "$1" "$aside"
mount -o remount,bind,ro "$aside"
mount --bind "$aside" "$1"
umount "$aside"
rmdir "$aside"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostEvidence:
    """A process of a lab host as seen from outside; `pid` is the operator's number."""

    pid: int
    cmdline: tuple[str, ...]
    environ: Mapping[str, str]


class LabHost(Faults, Disorders, Stalls):
    """A machine of the lab: boot it, cut its power, run commands on it, break its network.

    Attributes:
        name: Its hostname, such as `gpu00`.
        address: The address by which the operator (or the bastion) reaches it.
        nics: Its network cards.
        disk: Its disk (write to it only while the host is off).
        users: Its accounts; the first is the operator's.
        public_key: Its SSH host key.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        lab: int,
        nics: tuple[Nic, ...],
        users: tuple[User, ...],
        options: HostOptions,
    ) -> None:
        self.name = name
        self.lab_number = lab
        self.nics = nics
        self.users = users
        self.options = options
        self.folder = folder / "hosts" / name
        self.disk = Disk(self.folder / "upper")
        self.namespace = network.namespace(lab, name)
        self.public_key = ""
        self.stalled: list[str] = []  # folders whose disks stall
        self._shared_home: Path | None = None
        self._gate = self.namespace

    @property
    def address(self) -> str:
        return self.nics[0].address

    def prepare(
        self, names: Mapping[str, str], files: Mapping[str, str], *, shared_home: Path | None, gate: str | None
    ) -> None:
        """Lay out the disk.

        Args:
            names: Addresses by host name, of the whole lab.
            files: Texts by path in every home.
            shared_home: The folder that is /home, of several hosts.
            gate: The namespace from which the host is reached (None: the operator's).
        """
        for part in ("upper", "work", "root"):
            (self.folder / part).mkdir(parents=True)
        self._shared_home, self._gate = shared_home, gate or ""
        lay_out(self.disk, self.name, self.users, self.options, names)
        homes = shared_home or self.disk.folder("/home")
        for user in self.users:
            make_home(homes / user.name, user, self.options, files)
        self.public_key = new_host_key(self.disk)

    def boot(self) -> None:
        """Power on, and return when sshd answers; the disk is as the last power cut left it."""
        network.plug_in(self.lab_number, self.name, self.nics)
        (self.folder / "stat").unlink(missing_ok=True)
        unshare = ("unshare", "--mount", "--uts", "--pid", "--ipc", "--fork", "--kill-child")
        home = str(self._shared_home or "")
        limits = [f"--{name}={value}" for name, value in self.options.limits.items()]
        init = ("sh", str(INIT), str(self.folder), self.name, home, "".join(f"{m}\n" for m in foreign_mounts()))
        entry = ("nsenter", f"--net=/run/netns/{self.namespace}", "setsid", "--fork")
        with (self.folder / "console.log").open("ab") as console:
            argv = [*entry, *unshare, *init, *limits]
            subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console, check=True)
        wait_until(f"{self.name} boots", self._answers)
        # The question took one of sshd's places for newcomers; it counts when few are allowed.
        wait_until(f"{self.name} is free", lambda: not any(map(_is_newcomer, children(self.init.pid))))

    def _answers(self) -> bool:
        """Whether sshd has said its banner."""
        if (self.folder / "stat").exists() and not self.init.alive:
            console = (self.folder / "console.log").read_text(errors="replace").strip().splitlines()
            raise LabError(f"{self.name} died while booting: {' | '.join(console[-3:])}")
        try:
            return self.banner().startswith("SSH-")
        except OSError:
            return False

    def banner(self) -> str:
        """What its SSH server says, asked from where the host is meant to be reached."""
        if self._gate:
            return inside_network(self._gate, lambda: ssh_banner(self.address))
        return ssh_banner(self.address)

    @property
    def init(self) -> ProcessId:
        """The host's PID 1 (its sshd) as the operator's machine sees it."""
        return ProcessId.from_stat((self.folder / "stat").read_text())

    @property
    def running(self) -> bool:
        return (self.folder / "stat").exists() and self.init.alive

    def power_off(self) -> None:
        """Cut the power: every process gone at once and not a packet more; the disk stays."""
        for nic in self.nics:
            # The cable first: a dying kernel would still say goodbye, which no dead machine does.
            command("ip", "-n", network.switch(self.lab_number), "link", "set", nic.port, "down", check=False)
        self.go_on()  # nothing that is held up in the kernel can be killed
        if self.running:
            kill_and_wait([self.init])
        self.forget_freezer()
        kill_and_wait(network.processes(self.namespace))
        network.unplug(self.lab_number, self.name, self.nics)

    def new_host_key(self) -> str:
        """Reinstall: power cut, another SSH host key, boot. known_hosts keeps the old one."""
        self.power_off()
        self.public_key = new_host_key(self.disk)
        self.boot()
        return self.public_key

    def argv(self, argv: Sequence[str], user: str = "", env: Mapping[str, str] | None = None) -> list[str]:
        """The operator's command line that runs `argv` on the host, for callers with their own Popen."""
        if not self.running:
            raise LabError(f"{self.name} is off: {list(argv)} cannot run there")
        account = self.user(user)
        place = ("nsenter", f"--target={self.init.pid}", *NAMESPACES)
        become = ("setpriv", f"--reuid={account.uid}", f"--regid={account.uid}", "--init-groups", "--pdeathsig=KILL")
        plain = {
            "HOME": account.home,
            "USER": account.name,
            "LOGNAME": account.name,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        }
        if account is ROOT:
            plain["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = [f"{key}={value}" for key, value in {**plain, **(env or {})}.items()]
        return [*place, *become, "env", "-i", "-C", account.home, *variables, *argv]

    def user(self, name: str = "") -> User:
        """An account of this host by name; the operator's by default; `root` too."""
        if not name:
            return self.users[0]
        return next(user for user in (*self.users, ROOT) if user.name == name)

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str = "",
        text: str | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host, not through SSH, in the user's home.

        Args:
            argv: The command, passed untouched.
            user: Account (default: the operator's); `root` is allowed.
            text: What it reads on stdin (default: nothing).
            env: Variables beside HOME, USER, LOGNAME and PATH.
            check: Raise LabError when it fails.
            timeout: Seconds; past them the command is killed and TimeoutExpired raised.
        """
        done = subprocess.run(
            self.argv(argv, user, env),
            input=text or "",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise LabError(f"{self.name}: {list(argv)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done

    def write(self, path: str, text: str, *, user: str = "", mode: int = 0o644) -> None:
        """Write a file on the running host as a user (a relative path starts in the user's home)."""
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1" && chmod "$2" -- "$1"'
        self.run(["sh", "-c", script, "sh", path, f"{mode:o}"], user=user, text=text)

    def read(self, path: str) -> str:
        """The text of a file on the running host."""
        return self.run(["cat", "--", path], user="root").stdout

    def small_disk(self, path: str, size: str = "1m", inodes: int | None = None) -> None:
        """Mount a small file system on a folder (made if missing) that belongs to the operator's user."""
        account = self.users[0]
        shape = f"size={size},uid={account.uid},gid={account.uid},mode=0755"
        if inodes is not None:
            shape += f",nr_inodes={inodes}"
        script = 'mkdir -p -- "$1" && mount -t tmpfs -o "$2" tmpfs "$1"'
        self.run(["sh", "-c", script, "sh", path, shape], user="root")

    def fill_disk(self, path: str) -> None:
        """Fill the file system of `small_disk` to the last byte."""
        if self.run(["stat", "-f", "-c", "%T", path], user="root").stdout.strip() != "tmpfs":
            raise LabError(f"{self.name}: {path} is no small disk: filling it would fill the operator's")
        self.run(["dd", "if=/dev/zero", f"of={path}/.filled", "bs=64k"], user="root", check=False)

    def read_only(self, path: str) -> None:
        """Let no file below a folder be made, changed or opened for writing from now on; what is open stays so."""
        self.run(["sh", "-ec", _READ_ONLY, "sh", path], user="root")

    def processes(self) -> list[HostEvidence]:
        """All processes of the host but its sshd (PID 1, connections)."""
        if not self.running:
            return []
        namespace = Path(f"/proc/{self.init.pid}/ns/pid").readlink()
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        found = [seen for pid in pids if (seen := _look(pid, namespace))]
        return [seen for seen in found if not " ".join(seen.cmdline[:1]).startswith("sshd: ")]

    def leftovers(self, marker: str) -> list[HostEvidence]:
        """Processes that carry a text in their command line or environment."""
        return [
            seen
            for seen in self.processes()
            if any(marker in word for word in (*seen.cmdline, *seen.environ, *seen.environ.values()))
        ]


def _is_newcomer(pid: int) -> bool:
    """Whether it is sshd's process for a connection that has not logged in yet."""
    with contextlib.suppress(OSError):
        return any("[accepted]" in word for word in _words(f"/proc/{pid}/cmdline"))
    return False


def _look(pid: int, namespace: Path) -> HostEvidence | None:
    """A process if it is in a pid namespace; None for others, and for those that end meanwhile."""
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/ns/pid").readlink() == namespace:
            cmdline = _words(f"/proc/{pid}/cmdline")
            pairs = (word.partition("=") for word in _words(f"/proc/{pid}/environ"))
            return HostEvidence(pid=pid, cmdline=cmdline, environ={key: value for key, _, value in pairs})
    return None


def _words(path: str) -> tuple[str, ...]:
    text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    return tuple(word for word in text.split("\0") if word)
