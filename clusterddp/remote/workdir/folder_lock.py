"""The lock of a workdir: one sync at a time among all hosts that share the folder, safe on a network filesystem.

    <workdir>/.clusterddp-live/
        lock.free, or lock.held.<owner>.<nonce>    the lock: one file, held by the process that renamed it last
        synced.json, manifest.<digest>             what syncs have written (sync_record.py)
        run.<owner>.<run>.<host>                   one for each live run (live_runs.py)
        start.<run>                                when a run began here (start_marker.py)
        parts/                                     contents of a sync in progress or interrupted (chunk_files.py)
        id                                         a random id: hosts that read the same one share the folder

A rename is atomic on every filesystem, and each holder's file name is unique. So the lock of a dead holder is taken
over by a rename of exactly that name, which succeeds for only one of several contenders. The folder itself is created
together with its lock, by a rename.
"""

import errno
import os
import stat
import time
from typing import Optional

from ..shared.workdir.manifest import as_text
from ..system.bootstrap import Refused
from ..system.clock import folder_time
from ..system.small_files import open_regular
from .lock_owner import LockOwner, last_heartbeat, owner_of

LIVE_FOLDER = b".clusterddp-live"
_NEW_FOLDER_PREFIX = b".clusterddp-new-"
_FREE_NAME, _HELD_PREFIX = b"lock.free", b"lock.held."
LOCK_TIMEOUT = 120.0  # seconds for one holder of the lock to end; another one that takes it has as many
STALE_TIMEOUT = 60.0  # seconds without a heartbeat after which another host's lock is taken over
HEARTBEAT_INTERVAL = 1.0  # seconds between two heartbeats of a sync in progress
_RETRY_INTERVAL = 0.02  # seconds between two tries while a process of this host holds the lock
_REMOTE_RETRY_INTERVAL = 0.5  # the same for another host


class FolderLock:
    """Context manager that holds the lock of the workdir ``root``; no lock is taken where we may not write.

    Raises Refused if one other sync holds it for longer than LOCK_TIMEOUT; hosts that share a workdir take turns.
    """

    def __init__(self, state: str, root: bytes) -> None:
        self.root = root
        self.folder = os.path.join(root, LIVE_FOLDER)
        self._this_process = owner_of(state, os.getpid())
        nonce = os.urandom(8).hex()
        self._held_path = os.path.join(self.folder, _HELD_PREFIX + ("%s.%s" % (self._this_process, nonce)).encode())
        self._last_heartbeat: Optional[float] = None  # monotonic time of the latest; None: the lock is not held
        self._holder = b""  # the lock's file name, as the last process held it that we had to wait for

    def __enter__(self) -> "FolderLock":  # noqa: PYI034 - typing.Self is Python 3.11
        if not os.access(self.root, os.W_OK):
            return self
        make_live_folder(self.root)
        pause = self._try_to_lock()
        holder, deadline = self._holder, time.monotonic() + LOCK_TIMEOUT
        while pause:
            if self._holder != holder:
                holder, deadline = self._holder, time.monotonic() + LOCK_TIMEOUT
            if time.monotonic() > deadline:
                raise self._refusal()
            time.sleep(pause)
            pause = self._try_to_lock()
        self._last_heartbeat = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._last_heartbeat is not None:
            self._last_heartbeat = None
            try:
                os.rename(self._held_path, os.path.join(self.folder, _FREE_NAME))
            except FileNotFoundError:  # another host took it over, or the folder was removed
                pass

    def check(self) -> None:
        """Renew the heartbeat; to be called before each change and while waiting for anything.

        Raises Refused if our heartbeat stopped for so long that another host has taken over the lock.
        """
        if self._last_heartbeat is None or time.monotonic() - self._last_heartbeat < HEARTBEAT_INTERVAL:
            return
        try:
            os.utime(self._held_path, follow_symlinks=False)
        except FileNotFoundError:
            self._last_heartbeat = None
            message = "this sync stood still, and another one has taken over %s" % as_text(self.root)
            raise Refused(message, "sync again") from None
        self._last_heartbeat = time.monotonic()

    def _try_to_lock(self) -> float:
        """Try once to take the lock; return 0 on success, else the seconds to wait before the next try."""
        if self._take_over(os.path.join(self.folder, _FREE_NAME)):
            return 0.0
        pause = _RETRY_INTERVAL
        for name in os.listdir(self.folder):
            path = os.path.join(self.folder, name)
            if path == self._held_path:  # our rename succeeded, but its reply was lost
                return 0.0
            if not name.startswith(_HELD_PREFIX):
                continue
            self._holder = name
            holder = LockOwner.parse(os.fsdecode(name[len(_HELD_PREFIX) :]).partition(".")[0])
            lives = holder.lives(self._this_process) if holder else None
            if lives is None:
                pause = _REMOTE_RETRY_INTERVAL
                heartbeat = last_heartbeat(path)
                lives = heartbeat is None or folder_time(self.folder) - heartbeat <= STALE_TIMEOUT
            if not lives and self._take_over(path):
                return 0.0
        return pause

    def _take_over(self, path: bytes) -> bool:
        """Take the lock by renaming its file ``path``; return False if another process was faster."""
        try:
            os.utime(path, follow_symlinks=False)  # before the rename: a lock just taken must not look stale
            os.rename(path, self._held_path)
        except FileNotFoundError:
            return False
        return True

    def _refusal(self) -> Refused:
        """The error when the lock could not be taken in time."""
        if any(name.startswith(b"lock.") for name in os.listdir(self.folder)):
            return Refused("another sync holds %s" % as_text(self.root), "wait for it to end")
        return Refused("the lock in %s was removed" % as_text(self.folder), "remove that folder while no run is live")


def make_live_folder(root: bytes) -> None:
    """Create the ``.clusterddp-live`` folder in a workdir, with its lock in it; raises Refused."""
    live_folder = os.path.join(root, LIVE_FOLDER)
    try:
        info = os.lstat(live_folder)
    except FileNotFoundError:  # it is made below
        pass
    else:
        if not stat.S_ISDIR(info.st_mode) or info.st_uid not in (0, os.getuid()):
            message = "%s is not a folder that a sync of yours has made" % as_text(live_folder)
            raise Refused(message, "remove it while no run is live, and keep others from writing beside it")
        return
    new = os.path.join(root, _NEW_FOLDER_PREFIX + os.urandom(8).hex().encode())
    os.mkdir(new, 0o755)
    for name, text in ((_FREE_NAME, ""), (b"id", os.urandom(16).hex()), (b".gitignore", "*\n")):
        with open(os.path.join(new, name), "x", encoding="utf-8", opener=_for_readers) as stream:
            stream.write(text)
    try:
        os.rename(new, live_folder)
    except OSError as error:
        import shutil

        shutil.rmtree(new, ignore_errors=True)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _for_readers(path: str, flags: int) -> int:
    """Open a file that others can read if they can read the workdir: it reveals no more than the files there do."""
    return os.open(path, flags | os.O_CLOEXEC, 0o644)


def folder_id(root: bytes) -> Optional[str]:
    """Return the random id of a workdir; None if no sync has been there."""
    path = os.path.join(root, LIVE_FOLDER, b"id")
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_regular) as stream:
            return stream.read(64)
    except (FileNotFoundError, NotADirectoryError):
        return None
