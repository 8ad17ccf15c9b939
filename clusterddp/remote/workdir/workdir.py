"""A workdir: its path, its lock, and whether live runs forbid changing the code in it."""

import errno
import os
from typing import List, NamedTuple, Optional

from ..shared.workdir.manifest import as_text, on_disk
from ..shared.workdir.sync_records import SyncRequest
from ..shared.workdir.workdir_names import is_name, is_named, named_workdir
from ..system.bootstrap import NETWORK_FILESYSTEMS, Refused, filesystem_type, home_folder
from ..system.small_files import nearest_folder
from ..transfer.descriptor_walk import open_or_make, real_folder
from .folder_lock import FolderLock, folder_id
from .live_runs import LiveRun, live_runs
from .sync_record import SyncRecord


class Workdir(NamedTuple):
    """A workdir to sync to: its record, and the runs that are live in it."""

    record: SyncRecord
    live: List[LiveRun]

    @property
    def path(self) -> bytes:
        """The workdir's path."""
        return self.record.root

    @property
    def runs(self) -> str:
        """The ids of the live runs, each once, as text."""
        return ", ".join(sorted({live.run for live in self.live}))

    def refuse_live(self) -> None:
        """Refuse a change of the project's files in the workdir; raises Refused."""
        if self.live:
            message = "run %s is live in %s with other code or data" % (self.runs, as_text(self.path))
            remedy = "give this run a folder of its own with --workdir NAME, wait for that run, or `clusterddp stop %s`"
            raise Refused(message, remedy % self.live[0].run)

    @property
    def notice(self) -> str:
        """One line for the user about live runs in the workdir; empty without any."""
        if not self.live:
            return ""
        return "run %s is live in %s too: both write there; --workdir fresh gives a run a folder of its own" % (
            self.runs,
            as_text(self.path),
        )


def read_workdir(state: str, root: bytes) -> Workdir:
    """The workdir at ``root``, with its record and live runs."""
    return Workdir(SyncRecord(state, root), live_runs(state, root))


class LockedWorkdir:
    """Context manager that holds a workdir's lock at its real path; with ``make`` a missing folder is made.

    Without ``make`` a folder where no sync has been is not locked, so that nothing is left there. Raises Refused if
    another sync holds it for long, or in place of an OSError of the block.
    """

    def __init__(self, state: str, order: SyncRequest, *, make: bool) -> None:
        self._state, self._make = state, make
        self._lock = FolderLock(state, workdir_path(order.workdir, state, order.name))

    def __enter__(self) -> FolderLock:
        root = self._lock.root
        try:
            if self._make:
                os.close(open_or_make(root))
            if os.path.isdir(root) and (self._make or folder_id(root)):
                self._lock.__enter__()
        except OSError as error:
            raise self._refusal(error) from error
        return self._lock

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        try:
            self._lock.__exit__()
        except OSError as second:
            error = error or second
        if isinstance(error, OSError):
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> Refused:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        root, state = self._lock.root, os.fsencode(self._state)
        path = os.fsdecode(path_in_error(error) or (_least_space(root, state) if full else root))
        remedy = "make room or give rights there, then sync again"
        return Refused("cannot sync to %s: %s" % (path, error.strerror), remedy)


def path_in_error(error: OSError) -> Optional[bytes]:
    """The path that an error names; None if it names none, or a file of ours, which means nothing to a user."""
    for name in (error.filename2, error.filename):
        path = os.fsencode(name) if isinstance(name, (str, bytes)) else b""
        if path.startswith(b"/") and b"/.clusterddp-" not in path:
            return path
    return None


def _least_space(*folders: bytes) -> bytes:
    """The folder with the least free disk space: a failed write does not name its file."""
    return min((folder for folder in folders if os.path.isdir(folder)), key=lambda f: os.statvfs(f).f_bavail)


def workdir_path(workdir: str, state: str, name: str = "") -> bytes:
    """The real path of a workdir, or with ``name`` of the folder of that name beside it; raises Refused."""
    setting = "set clusterddp_workdir to a folder of its own"
    if workdir.startswith("~/"):
        workdir = os.path.join(home_folder(), workdir[2:])
    if not os.path.isabs(workdir):
        raise Refused("the workdir %r is not absolute" % workdir, setting)
    try:
        root = real_folder(on_disk(workdir))
    except NotADirectoryError:
        raise Refused("the workdir %s is not a folder" % workdir, setting) from None
    if name:
        if not is_name(name):
            raise Refused("%r cannot be a folder's name" % name, "use letters, digits, '.', '_' and '-'")
        root = on_disk(named_workdir(as_text(root), name))
    folder, home, own = root + b"/", os.path.realpath(on_disk(home_folder())), os.path.realpath(on_disk(state))
    if root == b"/" or (home + b"/").startswith(folder) or root == own or root.startswith(own + b"/"):
        raise Refused("%s cannot be a workdir" % as_text(root), setting)
    if os.path.lexists(root) and not os.path.isdir(root):
        raise Refused("the workdir %s is not a folder" % as_text(root), setting)
    return root


def named_workdirs(primary: bytes) -> List[bytes]:
    """The existing folders of ``--workdir NAME`` beside a workdir, sorted."""
    parent, primary_name = os.path.split(primary)
    try:
        names = os.listdir(parent)
    except FileNotFoundError:
        return []
    paths = [os.path.join(parent, name) for name in sorted(names) if is_named(as_text(name), as_text(primary_name))]
    return [path for path in paths if os.path.isdir(path) and not os.path.islink(path)]


def shared_identity(root: bytes) -> Optional[str]:
    """A name for a folder that is the same on all hosts that share it; None where nothing suggests that any do."""
    identity, existing = folder_id(root), nearest_folder(root)
    if identity or filesystem_type(as_text(existing)) not in NETWORK_FILESYSTEMS:
        return identity
    return "%s %d" % (as_text(root), os.stat(existing).st_ino)
