"""Helpers' zipapps in the state folder that are not used any more: whose, and when they are removed.

Runs are not among their users: each has the file by a name of its own in its spool, and it lasts as long as that.
"""

import os
import sys
import time
from typing import Iterator, Set

from ..system import procfs

UNUSED = 600.0  # seconds since a helper's last start, in which one may be about to open it


def remove_unused_helpers(state: str, *, own: bool, unused: float = UNUSED) -> int:
    """Remove helpers of other versions that no process uses, with ``own`` this one too; returns how many.

    A job that a workload manager has not started yet may want any of them: all stay then.

    Args:
        state: The state folder.
        own: Whether this process's goes too.
        unused: Seconds since the last start of one that is removed.
    """
    folder, count = os.path.join(state, "helper"), 0
    if any(unended_jobs(state)):
        return 0
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        ours = name[:64] == os.path.basename(sys.argv[0])[:64]  # the digest of what was sent
        if ours and not own:
            continue
        try:
            if (ours or time.time() - os.stat(path).st_mtime > unused) and not _users(path):
                os.unlink(path)
                count += 1
        except FileNotFoundError:  # another `down` was faster
            continue
    return count


def unended_jobs(state: str) -> Iterator[str]:
    """The runs whose Slurm job has not ended as far as its script says."""
    jobs = os.path.join(state, "slurm")
    for name in os.listdir(jobs) if os.path.isdir(jobs) else ():
        if os.path.isdir(os.path.join(jobs, name)) and not os.path.exists(os.path.join(jobs, name, "end.json")):
            yield name


def _users(path: str) -> Set[int]:
    """The pids that have a helper's file open, as each helper has its own; this process and its parent left out."""
    own = {os.getpid(), os.getppid()}
    return {
        pid for pid, process in procfs.snapshot().items() if pid not in own and procfs.has_open(process.folder, path)
    }
