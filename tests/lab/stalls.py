"""A lab host that is held up, whole or by its disk, as methods of LabHost. Nothing dies of it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tests.lab import network
from tests.lab.options import LabUnavailable
from tests.lab.system import LabError, command

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from tests.lab.disk import User
    from tests.lab.system import ProcessId

FREEZER = Path("/sys/fs/cgroup/freezer")
IMAGE = 256 << 20  # bytes, most of them holes


class _Held(Protocol):
    """What is needed of a host."""

    name: str
    namespace: str
    folder: Path
    users: tuple[User, ...]

    @property
    def running(self) -> bool: ...
    @property
    def init(self) -> ProcessId: ...
    @property
    def stalled(self) -> list[str]: ...
    def run(self, argv: Sequence[str], *, user: str, check: bool = True) -> subprocess.CompletedProcess[str]: ...


class Stalls:
    """Stalls of a running host; `go_on()` undoes them all."""

    def freeze(self: _Held) -> None:
        """Stop every process at one moment, as a hypervisor does or a lid that is shut; its network stays up."""
        cgroup = _cgroup(self)
        try:
            cgroup.mkdir(exist_ok=True)
        except OSError as error:
            raise LabUnavailable(f"no host can be frozen here: {error}") from None
        for process in network.processes(self.namespace):
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                (cgroup / "cgroup.procs").write_text(str(process.pid))
        (cgroup / "freezer.state").write_text("FROZEN")

    def disk_of_its_own(self: _Held, path: str) -> None:
        """Put a folder (made if missing) of the operator's user on an ext4 file system of its own, unless it is."""
        if not self.run(["mountpoint", "-q", path], user="root", check=False).returncode:
            return
        image = self.folder / f"{path.replace('/', '-')}.img"
        with image.open("wb") as file:
            file.truncate(IMAGE)
        command("mkfs.ext4", "-q", str(image))
        try:
            device = command("losetup", "--find", "--show", str(image)).strip()
        except LabError as error:
            raise LabUnavailable(f"no loop device: {error}") from None
        try:
            self.run(["mkdir", "-p", path], user="root")
            self.run(["mount", device, path], user="root")
        finally:
            command("losetup", "--detach", device)  # gone with its last mount
        owner = self.users[0].name
        self.run(["chown", f"{owner}:{owner}", path], user="root")

    def stall_disk(self: _Held, path: str) -> None:
        """Hold up whatever writes to the file system of `disk_of_its_own`, in the kernel; reading goes on."""
        self.stalled.append(path)
        command("fsfreeze", "--freeze", f"/proc/{self.init.pid}/root{path}")

    def go_on(self: _Held) -> None:
        """Thaw what was frozen, and let disks write again."""
        cgroup = _cgroup(self)
        if cgroup.exists():
            (cgroup / "freezer.state").write_text("THAWED")
        while self.stalled:
            path = self.stalled.pop()
            if self.running:
                command("fsfreeze", "--unfreeze", f"/proc/{self.init.pid}/root{path}", check=False)

    def forget_freezer(self: _Held) -> None:
        """Remove the control group; all in it has ended."""
        with contextlib.suppress(OSError):
            _cgroup(self).rmdir()


def thaw(prefix: str) -> None:
    """Thaw all hosts of a lab that was left behind: what is frozen cannot be killed."""
    for cgroup in FREEZER.glob(f"{prefix}-*"):
        with contextlib.suppress(OSError):
            (cgroup / "freezer.state").write_text("THAWED")


def _cgroup(host: _Held) -> Path:
    return FREEZER / host.namespace
