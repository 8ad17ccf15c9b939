"""Remove helpers' zipapps in the state folder that are not used any more.

Runs do not use them: each has a name of its own for the file in its spool, and the file lasts as long as that.
"""

import os
import sys
import time
from typing import Iterator, Set

from ..system import procfs
from ..system.small_files import names_in

UNUSED_AGE = 600.0  # seconds since a helper's last start within which a process may be about to open it


def remove_unused_helpers(state: str, *, this_version: bool, unused: float = UNUSED_AGE) -> int:
    """Remove helpers of other versions that were last started over ``unused`` seconds ago; returns how many.

    With ``this_version`` this process's version is removed too, whenever it was started. A helper that any other
    process has open stays. All stay while a Slurm job on record has not ended: it may need any of them when it starts.
    """
    folder, count = os.path.join(state, "helper"), 0
    if any(unended_jobs(state)):
        return 0
    for name in sorted(names_in(folder)):
        path = os.path.join(folder, name)
        is_this_version = name[:64] == os.path.basename(sys.argv[0])[:64]  # the digest of what was sent
        if is_this_version and not this_version:
            continue
        try:
            if (is_this_version or time.time() - os.stat(path).st_mtime > unused) and not _users(path):
                os.unlink(path)
                count += 1
        except FileNotFoundError:  # another `down` has just removed it
            continue
    return count


def unended_jobs(state: str) -> Iterator[str]:
    """The runs whose Slurm job has not ended, by the files of its script."""
    jobs = os.path.join(state, "slurm")
    for name in names_in(jobs):
        if os.path.isdir(os.path.join(jobs, name)) and not os.path.exists(os.path.join(jobs, name, "end.json")):
            yield name


def _users(path: str) -> Set[int]:
    """The pids that have a helper's file open, as each running helper has; without this process and its parent."""
    exempt = {os.getpid(), os.getppid()}
    return {
        pid for pid, process in procfs.snapshot().items() if pid not in exempt and procfs.has_open(process.folder, path)
    }
