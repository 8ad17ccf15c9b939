"""workdirs_beside and remove_workdirs: list and remove the ``--workdir NAME`` folders beside a project's workdir.

Only folders that a sync has used are meant, never the workdir itself and none in which a run is live. A folder is
renamed before it is removed, so that an interruption leaves no half-removed workdir; the renamed rest is removed the
next time.
"""

import os
import shutil
import time
from typing import Any, Dict, List, Set, Tuple

from ..helper.request import Request
from ..shared.cleanup.everything_records import PathLeft
from ..shared.schema.record import written
from ..shared.workdir.manifest import as_text
from ..shared.workdir.named_workdir_records import (
    NamedWorkdir,
    NamedWorkdirs,
    NamedWorkdirsRequest,
    RemoveWorkdirsAnswer,
    RemoveWorkdirsRequest,
)
from ..system.bootstrap import Refused
from .folder_lock import LIVE_FOLDER, FolderLock, folder_id
from .live_runs import live_runs
from .stat_cache import forget
from .workdir import named_workdirs, workdir_path

SUPERVISOR_EXIT_LIMIT = 10.0  # seconds that a supervisor may take to exit after it wrote its exit record
_REMOVED = b".clusterddp-removed-"


def workdirs_beside(request: Request) -> Dict[str, Any]:
    """Operation that takes a ``NamedWorkdirsRequest`` and returns a ``NamedWorkdirs``."""
    state = request.state
    primary = workdir_path(request.read_args(NamedWorkdirsRequest).workdir, state)
    return written(NamedWorkdirs(tuple(_folder(state, path) for path in _ours(primary))))


def remove_workdirs(request: Request) -> Dict[str, Any]:
    """Operation that takes a ``RemoveWorkdirsRequest`` and returns a ``RemoveWorkdirsAnswer``."""
    state, order = request.state, request.read_args(RemoveWorkdirsRequest)
    primary = workdir_path(order.workdir, state)
    removed: List[str] = []
    kept: List[PathLeft] = []
    freed = 0
    for path in _ours(primary):
        if as_text(path) not in order.paths:
            continue
        try:
            _await(state, path, set(order.stopped))
            freed += _remove(state, path)
            removed.append(as_text(path))
        except Refused as error:
            kept.append(PathLeft(as_text(path), error.message))
        except OSError as error:
            kept.append(PathLeft(as_text(path), error.strerror or str(error)))
    parent = os.path.dirname(primary)
    for name in os.listdir(parent) if os.path.isdir(parent) else []:
        if name.startswith(_REMOVED):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    return written(RemoveWorkdirsAnswer(tuple(removed), freed, tuple(kept)))


def _ours(primary: bytes) -> List[bytes]:
    return [path for path in named_workdirs(primary) if os.path.isdir(os.path.join(path, LIVE_FOLDER))]


def _live(state: str, path: bytes) -> List[str]:
    return sorted({one.run for one in live_runs(state, path)})


def _await(state: str, path: bytes, stopped: Set[str]) -> None:
    deadline = time.monotonic() + SUPERVISOR_EXIT_LIMIT
    while set(_live(state, path)) & stopped and time.monotonic() < deadline:
        time.sleep(0.02)


def _remove(state: str, path: bytes) -> int:
    """Remove a folder, and return the bytes that it took on disk; raises Refused if a run is live there."""
    with FolderLock(state, path):
        live = _live(state, path)
        if live:
            raise Refused("run %s is live there" % ", ".join(live))
        taken, _ = _measured(path)
        aside = os.path.join(os.path.dirname(path), _REMOVED + os.urandom(8).hex().encode())
        os.rename(path, aside)
    shutil.rmtree(aside)
    forget(state, path)
    return taken


def _folder(state: str, path: bytes) -> NamedWorkdir:
    taken, newest = _measured(path)
    live = tuple(_live(state, path))
    return NamedWorkdir(as_text(path), folder_id(path) or "", bytes=taken, written=newest, live=live)


def _measured(path: bytes) -> Tuple[int, int]:
    """Return a folder's disk usage and the newest mtime of its files, both without our ``.clusterddp-live``."""
    taken, newest = 0, 0
    for base, folders, names in os.walk(path):
        if base == path and LIVE_FOLDER in folders:
            folders.remove(LIVE_FOLDER)
        for name in names:
            try:
                info = os.lstat(os.path.join(base, name))
            except OSError:  # removed meanwhile
                continue
            taken, newest = taken + info.st_blocks * 512, max(newest, info.st_mtime_ns)
    return taken, newest
