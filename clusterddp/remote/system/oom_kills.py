"""Count the processes that the kernel's out-of-memory killer has ended, by counters that any user may read.

The memory cgroup of this process counts the kills among its own processes, whichever group's limit was hit. Where it
cannot be read, the machine's counter (/proc/vmstat) at least shows that some process was killed. The kernel log has no
more, and most hosts hide it from users.
"""

import os
from typing import Iterator, Optional

from .small_files import text_of

CGROUPS = "/sys/fs/cgroup"
OOM_SCORE = 500  # of a worker: the kernel kills it before the agent, the supervisor and sshd


class OomKills:
    """The kernel's count of OOM kills at the time this is made, to compare with later."""

    def __init__(self) -> None:
        self._path, self._before = "", None  # type: str, Optional[int]
        for path in _counters():
            self._path, self._before = path, _read(path)
            if self._before is not None:
                return

    def since(self) -> Optional[int]:
        """How many kills there were since this was made; None where no counter can be read."""
        now = _read(self._path) if self._before is not None else None
        return None if now is None or self._before is None else now - self._before


def _counters() -> Iterator[str]:
    """The files that may hold the counter, the closest to this process first."""
    for line in text_of("/proc/self/cgroup").splitlines():  # "4:memory:/a/b" in version 1, "0::/a/b" in version 2
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            for group in (path, "/"):  # in a container the mount may begin at the container's own group
                yield os.path.join(CGROUPS, "memory", group.strip("/"), "memory.oom_control")
        elif not controllers:
            for mount in (CGROUPS, os.path.join(CGROUPS, "unified")):
                for group in (path, "/"):
                    yield os.path.join(mount, group.strip("/"), "memory.events")
    yield "/proc/vmstat"


def _read(path: str) -> Optional[int]:
    """The number after ``oom_kill``; None if the file is missing or has no such line (kernels before 4.13)."""
    try:
        with open(path) as file:
            found = [line.split()[1] for line in file if line.startswith("oom_kill ")]
        return int(found[0]) if found else None
    except (OSError, ValueError, IndexError):
        return None
