"""The operation ``remove_everything``, for ``down --everything``: removes all of clusterddp in this account on a host.

Only what was shown to the user is removed: workdirs by path and random id, state folders by the names that we make in
them. A folder is emptied through its open descriptor, so nothing put in its place meanwhile, and no link in it,
redirects the removal. What belongs to another user, or is mounted there, stays and is listed.
"""

import contextlib
import os
import stat
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from ..helper.request import Request
from ..preload import server_folder
from ..shared.cleanup.cleanup_records import EverythingAnswer, EverythingRequest, PathLeft, ShownWorkdir
from ..shared.schema.record import to_fields
from ..shared.workdir.manifest import as_text
from ..system.bootstrap import Refused, home_folder
from ..system.code_finder import open_folder
from ..workdir.folder_lock import LIVE_FOLDER, FolderLock
from ..workdir.other_workdirs import SUPERVISOR_EXIT_LIMIT
from ..workdir.stat_cache import STAT_CACHES
from .holdings import find_live_runs, state_folders, workdirs
from .retention import remove_empty

# All that we make in a state folder; last the helper, which runs this. Temporary files of these names go too.
NAMES = (
    "runs", "rundirs", "pushed", "pulled", "data", "warm", "preload", "facts", "environments", "slurm",
    "trash", "pruned", "pruned-slurm", "host-id", STAT_CACHES, "helper",
)  # fmt: skip
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_everything(request: Request) -> Dict[str, Any]:
    """Operation: remove the workdirs that were shown, and the state folders.

    Takes an ``EverythingRequest``, returns an ``EverythingAnswer``. Raises Refused if a run is live here.
    """
    asked, state = request.read_args(EverythingRequest), request.state
    states = state_folders(state)
    roots = workdirs(states, state, asked.workdir)
    _refuse_live(states, roots)
    for folder in states:
        server_folder.end(folder)
    removal = Removal()
    for root in roots:
        removal.workdir(state, root, asked.shown)
    kept = {STAT_CACHES} if removal.left else set()  # its files let the next `down` find the workdirs again
    for folder in states:
        removal.state(folder, [name for name in NAMES if name not in kept])
    default_folder = os.path.join(
        home_folder(), "clusterddp"
    )  # where workdirs are made unless clusterddp_workdir is set
    if not os.path.islink(default_folder):
        remove_empty(default_folder)
    return to_fields(EverythingAnswer(removed=tuple(removal.removed), bytes=removal.bytes, left=tuple(removal.left)))


def _refuse_live(states: List[str], roots: List[bytes]) -> None:
    deadline = time.monotonic() + SUPERVISOR_EXIT_LIMIT
    live_runs = find_live_runs(states, roots)
    while live_runs and time.monotonic() < deadline:  # a run that was just stopped ends within moments
        time.sleep(0.1)
        live_runs = find_live_runs(states, roots)
    if live_runs:
        raise Refused("run %s is live here" % live_runs[0].run, "`clusterddp stop %s` ends it" % live_runs[0].run)


class Removal:
    """Removes workdirs and state folders, and records what was removed and what stays."""

    def __init__(self) -> None:
        self.removed: List[str] = []  # folders of which nothing is left
        self.bytes = 0  # disk space of all that was removed
        self.left: List[PathLeft] = []  # what stays

    def workdir(self, state: str, root: bytes, shown: Sequence[ShownWorkdir]) -> None:
        """Remove a workdir, if it is one of ``shown``. Its ``.clusterddp-live``, which identifies it, goes last."""
        path = as_text(root)

        def remove(folder: int) -> None:
            if (path, _random_id(folder)) not in shown:
                self.left.append(PathLeft(path, "it was not there when it was asked about"))
                return
            with FolderLock(state, root):
                self._empty_root(folder, path, [os.fsdecode(LIVE_FOLDER)])
            self._remove_root(folder, path)

        self._in_folder(os.fsdecode(root), path, remove, alone=False)

    def state(self, path: str, names: List[str]) -> None:
        """Remove what we make in a state folder, and the folder itself if nothing else is in it."""

        def remove(folder: int) -> None:
            if os.fstat(folder).st_uid != os.getuid():
                return
            with _readable(folder) as readable:
                for name in (*names, *_temporaries(readable)):
                    if name in os.listdir(readable):
                        self._remove(readable, name, os.path.join(path, name), _mount(readable))
            self._remove_root(folder, path)

        self._in_folder(path, path, remove, alone=True)

    def _in_folder(self, folder_path: str, path: str, remove: Callable[[int], None], *, alone: bool) -> None:
        """Open a folder and remove what is in it; where that fails, note the reason under ``path``."""
        try:
            folder, _ = open_folder(folder_path, alone=alone)
            try:
                remove(folder)
            finally:
                os.close(folder)
        except FileNotFoundError:  # another host that shares the folder was faster
            return
        except OSError as error:
            self.left.append(PathLeft(path, error.strerror or str(error)))
        except Refused as error:
            self.left.append(PathLeft(path, error.message))

    def _empty_root(self, folder: int, path: str, last: List[str]) -> None:
        if os.fstat(folder).st_uid != os.getuid():
            raise OSError(0, "belongs to another user")
        with _readable(folder) as readable:
            self._empty(readable, path, _mount(readable), last)

    def _empty(self, folder: int, path: str, mount: str, last: Sequence[str] = ()) -> None:
        """Remove everything in an open folder; names in ``last`` stay as long as anything else does."""
        before = len(self.left)
        names = os.listdir(folder)
        for name in names:
            if name not in last:
                self._remove(folder, name, os.path.join(path, name), mount)
        for name in last:
            if name in names and len(self.left) == before:
                self._remove(folder, name, os.path.join(path, name), mount)

    def _remove(self, above: int, name: str, path: str, mount: str) -> None:
        """Remove one entry of an open folder, whatever it is; never the target of a link."""
        before = len(self.left)
        try:
            info = os.stat(name, dir_fd=above, follow_symlinks=False)
            if info.st_uid != os.getuid():
                self.left.append(PathLeft(path, "it belongs to another user"))
            elif not stat.S_ISDIR(info.st_mode):
                os.unlink(name, dir_fd=above)
                self.bytes += info.st_blocks * 512 if info.st_nlink == 1 else 0
            elif self._empty_subfolder(above, name, path, mount, info) and len(self.left) == before:
                os.rmdir(name, dir_fd=above)
        except FileNotFoundError:  # another host that shares the folder was faster
            return
        except (OSError, RecursionError) as error:
            self.left.append(PathLeft(path, getattr(error, "strerror", None) or "it lies too deep"))

    def _empty_subfolder(self, above: int, name: str, path: str, mount: str, info: os.stat_result) -> bool:
        """Empty a folder in an open one; False where it stays because something is mounted there."""
        opened = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            if not os.path.samestat(os.fstat(opened), info) or _mount(opened) != mount:
                self.left.append(PathLeft(path, "something is mounted there"))
                return False
            if info.st_mode & 0o700 != 0o700:
                os.chmod("/proc/self/fd/%d" % opened, 0o700)
            folder = os.open(".", _READ, dir_fd=opened)
        finally:
            os.close(opened)  # before the descent: one descriptor a level
        try:
            self._empty(folder, path, mount)
        finally:
            os.close(folder)
        return True

    def _remove_root(self, folder: int, path: str) -> None:
        """Remove the folder itself if it is empty; else report what else is in it, unless that was reported."""
        if any(other.startswith(path + "/") for other, _ in self.left):
            return
        above, _ = open_folder(os.path.dirname(path), alone=False)
        try:
            name = os.path.basename(path)
            if os.path.samestat(os.stat(name, dir_fd=above, follow_symlinks=False), os.fstat(folder)):
                os.rmdir(name, dir_fd=above)
                self.removed.append(path)
        except FileNotFoundError:  # another host that shares the folder was faster
            return
        except OSError:
            names = sorted(os.listdir("/proc/self/fd/%d" % folder))
            self.left.append(PathLeft(path, "it holds what is not ours: %s" % ", ".join(names[:3])))
        finally:
            os.close(above)


@contextlib.contextmanager
def _readable(folder: int) -> Iterator[int]:
    """A descriptor that can list an open folder: an O_PATH descriptor cannot."""
    readable = os.open(".", _READ, dir_fd=folder)
    try:
        yield readable
    finally:
        os.close(readable)


def _random_id(folder: int) -> Optional[str]:
    """The random id of an open workdir, from the folder that a sync of this user made in it."""
    live_folder = os.open(LIVE_FOLDER, _READ, dir_fd=folder)
    try:
        if os.fstat(live_folder).st_uid != os.getuid():
            return None
        handle = os.open("id", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=live_folder)
        try:
            return os.read(handle, 64).decode("ascii", "replace")
        finally:
            os.close(handle)
    finally:
        os.close(live_folder)


def _mount(folder: int) -> str:
    """The id of the mount that an open folder is on: a bind mount can have the same device number."""
    with open("/proc/self/fdinfo/%d" % folder, encoding="ascii") as stream:
        return next((line for line in stream if line.startswith("mnt_id:")), "")


def _temporaries(folder: int) -> List[str]:
    """The temporary files of what we write in a state folder."""
    prefixes = tuple("%s." % name for name in NAMES)
    return [name for name in os.listdir(folder) if name.endswith(".tmp") and name.lstrip(".").startswith(prefixes)]
