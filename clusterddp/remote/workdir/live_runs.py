"""Which runs are live in a workdir, on any host that shares it, by one marker file for each in the folder itself.

A marker's name contains everything (folder_lock.py); the file is empty, so that a full disk does not prevent it. A
separate process renews its heartbeat (heartbeat.py). A marker counts as live unless its owner is proved dead
(lock_owner.py).
"""

import os
from typing import List, NamedTuple, Optional

from ..system.clock import folder_time
from ..system.small_files import names_in
from .folder_lock import LIVE_FOLDER
from .heartbeat import remove
from .lock_owner import LockOwner, last_heartbeat, owner_of

STALE_TIMEOUT = 600.0  # seconds without a heartbeat after which another host's run counts as ended
MARKER_PREFIX = b"run."


class LiveRun(NamedTuple):
    """A run that is live in a folder, and the host that its marker names."""

    run: str
    host: str


def live_runs(state: str, root: bytes) -> List[LiveRun]:
    """The runs that are live in the workdir ``root``; markers of dead runs are removed."""
    live_folder, runs = os.path.join(root, LIVE_FOLDER), []
    names = sorted(name for name in names_in(live_folder) if name.startswith(MARKER_PREFIX))
    this_process = owner_of(state, os.getpid()) if names else None
    now: Optional[float] = None
    for name in names:
        parts = os.fsdecode(name).split(".", 3)
        owner = LockOwner.parse(parts[1]) if len(parts) == 4 else None
        if owner is None or this_process is None:
            continue
        path = os.path.join(live_folder, name)
        lives = owner.lives(this_process)
        if lives is None:
            heartbeat = last_heartbeat(path)
            now = now or _server_time(live_folder)
            lives = heartbeat is not None and (now is None or now - heartbeat <= STALE_TIMEOUT)
        if lives and _has_ended(state, parts[2], parts[3]):
            continue  # its supervisor waits for the other nodes to end, and then the marker is removed
        if lives:
            runs.append(LiveRun(run=parts[2], host=parts[3]))
        else:
            remove(path)
    return runs


def _has_ended(state: str, run: str, host: str) -> bool:
    """Whether a host's part in a run has ended though its supervisor is alive, by the spools in our state folder."""
    from ..spool.layout import all_spools  # its import takes longer than a whole sync that finds nothing to do

    spools = [spool for spool in all_spools(state, run) if spool.host == host and spool.alive()]
    return bool(spools) and not any(spool.at_work() for spool in spools)


def _server_time(live_folder: bytes) -> Optional[float]:
    """The time now by the clock that sets the folder's mtimes; None if it cannot be asked."""
    try:
        return folder_time(live_folder)
    except OSError:  # read-only here: without a time to compare with, the marker counts as live
        return None
