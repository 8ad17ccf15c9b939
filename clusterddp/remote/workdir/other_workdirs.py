"""workdirs_beside and remove_workdirs: list and remove the ``--workdir NAME`` folders beside a project's workdir.

Only folders that a sync has used are meant, never the workdir itself and none in which a run is live. A folder is
renamed before it is removed, so that an interruption leaves no half-removed workdir; the renamed rest is removed the
next time.
"""

import os
import shutil
import time
from typing import Any, Dict, Iterator, List, Set, Tuple

from ..helper.request import Request
from ..shared.cleanup.cleanup_records import PathLeft
from ..shared.schema.record import to_fields
from ..shared.workdir.manifest import as_text
from ..shared.workdir.named_workdir_records import (
    NamedWorkdir,
    NamedWorkdirs,
    NamedWorkdirsRequest,
    RemoveWorkdirsAnswer,
    RemoveWorkdirsRequest,
)
from ..system.bootstrap import Refused
from ..system.small_files import names_in
from .folder_lock import LIVE_FOLDER, FolderLock, folder_id
from .live_runs import live_runs
from .stat_cache import remove_stat_cache
from .workdir import named_workdirs, workdir_path

SUPERVISOR_EXIT_LIMIT = 10.0  # seconds that a supervisor may take to exit after it wrote its exit record
_REMOVED_PREFIX = b".clusterddp-removed-"


def workdirs_beside(request: Request) -> Dict[str, Any]:
    """Operation: list the ``--workdir NAME`` folders beside a project's workdir.

    Takes a ``NamedWorkdirsRequest``, returns a ``NamedWorkdirs``.
    """
    state = request.state
    primary = workdir_path(request.read_args(NamedWorkdirsRequest).workdir, state)
    return to_fields(NamedWorkdirs(tuple(_describe(state, path) for path in _synced_workdirs(primary))))


def remove_workdirs(request: Request) -> Dict[str, Any]:
    """Operation that takes a ``RemoveWorkdirsRequest`` and returns a ``RemoveWorkdirsAnswer``."""
    state, order = request.state, request.read_args(RemoveWorkdirsRequest)
    primary = workdir_path(order.workdir, state)
    removed: List[str] = []
    kept: List[PathLeft] = []
    freed = 0
    for path in _synced_workdirs(primary):
        if as_text(path) not in order.paths:
            continue
        try:
            _await_exit_of(state, path, set(order.stopped))
            freed += _remove_workdir(state, path)
            removed.append(as_text(path))
        except Refused as error:
            kept.append(PathLeft(as_text(path), error.message))
        except OSError as error:
            kept.append(PathLeft(as_text(path), error.strerror or str(error)))
    parent = os.path.dirname(primary)
    for name in names_in(parent):
        if name.startswith(_REMOVED_PREFIX):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    return to_fields(RemoveWorkdirsAnswer(tuple(removed), freed, tuple(kept)))


def _synced_workdirs(primary: bytes) -> List[bytes]:
    """The ``--workdir NAME`` folders beside the project's workdir ``primary`` that a sync has used."""
    return [path for path in named_workdirs(primary) if os.path.isdir(os.path.join(path, LIVE_FOLDER))]


def _live_run_ids(state: str, path: bytes) -> List[str]:
    return sorted({live.run for live in live_runs(state, path)})


def _await_exit_of(state: str, path: bytes, stopped: Set[str]) -> None:
    """Wait a while until none of the ``stopped`` runs counts as live in the workdir at ``path``."""
    deadline = time.monotonic() + SUPERVISOR_EXIT_LIMIT
    while set(_live_run_ids(state, path)) & stopped and time.monotonic() < deadline:
        time.sleep(0.02)


def _remove_workdir(state: str, path: bytes) -> int:
    """Remove a folder, and return the bytes that it took on disk; raises Refused if a run is live there."""
    with FolderLock(state, path):
        live = _live_run_ids(state, path)
        if live:
            raise Refused("run %s is live there" % ", ".join(live))
        used, _ = _measure(path)
        aside = os.path.join(os.path.dirname(path), _REMOVED_PREFIX + os.urandom(8).hex().encode())
        os.rename(path, aside)
    shutil.rmtree(aside)
    remove_stat_cache(state, path)
    return used


def _describe(state: str, path: bytes) -> NamedWorkdir:
    used, newest = _measure(path)
    live = tuple(_live_run_ids(state, path))
    return NamedWorkdir(as_text(path), folder_id(path) or "", bytes=used, written=newest, live=live)


def _measure(path: bytes) -> Tuple[int, int]:
    """Return a folder's disk usage in bytes and its files' newest mtime (ns), both without our ``.clusterddp-live``."""
    used, newest = 0, 0
    for _, info in files_of(path):
        used, newest = used + info.st_blocks * 512, max(newest, info.st_mtime_ns)
    return used, newest


def files_of(root: bytes) -> Iterator[Tuple[str, os.stat_result]]:
    """The files of a workdir by their path in it, without those of ``.clusterddp-live``."""
    for base, folders, names in os.walk(root):
        if base == root and LIVE_FOLDER in folders:
            folders.remove(LIVE_FOLDER)
        for name in names:
            path = os.path.join(base, name)
            try:
                yield as_text(path[len(root) + 1 :]), os.lstat(path)
            except OSError:  # removed meanwhile
                continue
