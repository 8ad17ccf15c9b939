"""Which runs are live in a workdir, on any host that shares it, by one marker file for each in the folder itself.

A marker's name contains everything (folder_lock.py); the file is empty, so that a full disk does not prevent it. A
separate process renews its heartbeat (heartbeat.py). A marker counts as live unless its owner is proved dead
(lock_owner.py).
"""

import os
from typing import List, NamedTuple, Optional

from ..system.clock import folder_time
from .folder_lock import LIVE_FOLDER
from .heartbeat import remove
from .lock_owner import LockOwner, last_heartbeat, owner_of

OLD = 600.0  # seconds without a heartbeat after which another host's run counts as ended
MARK = b"run."


class LiveRun(NamedTuple):
    """A run that is live in a folder, and the host that its marker names."""

    run: str
    host: str


def live_runs(state: str, root: bytes) -> List[LiveRun]:
    """The runs that are live in the workdir ``root``; markers of dead runs are removed."""
    live_folder, found = os.path.join(root, LIVE_FOLDER), []
    marks = sorted(name for name in _names(live_folder) if name.startswith(MARK))
    here = owner_of(state, os.getpid()) if marks else None
    now: Optional[float] = None
    for name in marks:
        parts = os.fsdecode(name).split(".", 3)
        owner = LockOwner.parse(parts[1]) if len(parts) == 4 else None
        if owner is None or here is None:
            continue
        path = os.path.join(live_folder, name)
        lives = owner.lives(here)
        if lives is None:
            heartbeat = last_heartbeat(path)
            now = now or _time(live_folder)
            lives = heartbeat is not None and (now is None or now - heartbeat <= OLD)
        if lives and _is_over(state, parts[2], parts[3]):
            continue  # its supervisor waits for the other nodes to end, and then the marker is removed
        if lives:
            found.append(LiveRun(run=parts[2], host=parts[3]))
        else:
            remove(path)
    return found


def _is_over(state: str, run: str, host: str) -> bool:
    """Whether a live supervisor has already ended its host's part in a run, by the spools in our state folder."""
    from ..spool.layout import all_spools  # its import takes longer than a whole sync that finds nothing to do

    spools = [spool for spool in all_spools(state, run) if spool.host == host and spool.alive()]
    return bool(spools) and not any(spool.at_work() for spool in spools)


def _time(live_folder: bytes) -> Optional[float]:
    try:
        return folder_time(live_folder)
    except OSError:  # read-only here: without a time to compare with, the marker counts as live
        return None


def _names(live_folder: bytes) -> List[bytes]:
    try:
        return os.listdir(live_folder)
    except (FileNotFoundError, NotADirectoryError):  # no run was ever live here
        return []
