"""A run's marker in its workdir, created at its start: while the run lives, no sync changes the code there."""

import os
import subprocess
import sys

from ..shared.workdir.manifest import on_disk
from ..spool.layout import Spool
from ..system import procfs
from ..system.bootstrap import Refused
from ..transfer.descriptor_walk import real_folder
from .folder_lock import LIVE_FOLDER, FolderLock
from .heartbeat import touch
from .live_runs import MARKER_PREFIX, live_runs
from .lock_owner import owner_of
from .start_marker import mark_start
from .sync_record import SyncRecord


def protect(spool: Spool, state: str, workdir: str, digest: str) -> None:
    """Mark the run of ``spool`` as live in its workdir, and check that the code there is still that of ``digest``.

    A sync that ran in between either saw the marker and left the workdir alone, or is detected here. ``digest`` is
    empty if no sync has written the code (``--no-sync``). Raises Refused if another sync has changed the code
    meanwhile, or the workdir was removed.
    """
    root, supervisor = real_folder(on_disk(workdir)), spool.supervisor()
    if supervisor is None:  # it has ended already
        return
    try:
        with FolderLock(state, root):
            if os.access(root, os.W_OK):  # otherwise no sync of ours can change anything there
                mark_start(root, spool.run, [live.run for live in live_runs(state, root)])
                marker = mark(state, root, spool.run, spool.host, supervisor)
                start_heartbeat(spool, marker, supervisor)
            if digest and SyncRecord(state, root).digest != digest:
                raise Refused("another sync has changed the code in %s meanwhile" % workdir, "run again")
    except FileNotFoundError:
        raise Refused("%s was removed meanwhile" % workdir, "run again") from None


def mark(state: str, root: bytes, run: str, host: str, pid: int) -> bytes:
    """Create the marker of a run that is live as long as process ``pid`` of this host; return the marker's path.

    The caller holds the workdir's lock. Raises OSError if nothing can be written there.
    """
    name = MARKER_PREFIX + os.fsencode("%s.%s.%s" % (owner_of(state, pid), run, host))
    path = os.path.join(root, LIVE_FOLDER, name)
    touch(path)
    return path


def start_heartbeat(spool: Spool, marker: bytes, pid: int) -> None:
    """Start the process that renews a marker's heartbeat, and removes the marker after the end of ``pid``."""
    code = spool.code
    subprocess.Popen(  # it outlives this process
        [sys.executable, "-I", "-S", code, "beat", os.fsdecode(marker), str(pid), str(procfs.start_ticks(pid) or 0)],
        env={},  # without a run's mark it does not count among the run's processes
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
