"""workdirs_beside and remove_workdirs: list and remove the ``--workdir NAME`` folders beside a project's workdir.

Only folders that a sync has used are meant, never the workdir itself and none in which a run is live. A folder is
renamed before it is removed, so that an interruption leaves no half-removed workdir; the renamed rest is removed the
next time.
"""

import os
import shutil
import time
from typing import Any, Dict, List, Set

from ..helper.request import Request
from ..shared.workdir.manifest import as_text
from ..system.bootstrap import Refused
from .folder_lock import LIVE_FOLDER, FolderLock, folder_id
from .live_runs import live_runs
from .stat_cache import forget
from .workdir import folders_beside, workdir_path

SUPERVISOR_EXIT_LIMIT = 10.0  # seconds that a supervisor may take to exit after it wrote its exit record
_REMOVED = b".clusterddp-removed-"


def workdirs_beside(request: Request) -> List[Dict[str, Any]]:
    """List the folders beside ``workdir``: ``{path, id, bytes, written, live}`` each.

    ``id`` is the same on all hosts that share the folder; ``written``: the newest file's mtime in ns, by the file
    server's clock; ``live``: the runs that are live there.
    """
    primary, state = workdir_path(request.args["workdir"], request.args["state"]), request.args["state"]
    return [dict(_measured(path), live=_live(state, path)) for path in _ours(primary)]


def remove_workdirs(request: Request) -> Dict[str, Any]:
    """Remove those of ``paths`` that are beside ``workdir`` and in which no run is live.

    ``stopped`` are runs whose supervisors are about to exit: they are waited for. Returns
    ``{removed: [path], bytes, kept: [[path, why]]}``.
    """
    args = request.args
    primary, state = workdir_path(args["workdir"], args["state"]), args["state"]
    removed: List[str] = []
    kept: List[List[str]] = []
    freed = 0
    for path in _ours(primary):
        if as_text(path) not in args["paths"]:
            continue
        try:
            _await(state, path, set(args["stopped"]))
            freed += _remove(state, path)
            removed.append(as_text(path))
        except Refused as error:
            kept.append([as_text(path), error.message])
        except OSError as error:
            kept.append([as_text(path), error.strerror or str(error)])
    parent = os.path.dirname(primary)
    for name in os.listdir(parent) if os.path.isdir(parent) else []:
        if name.startswith(_REMOVED):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    return {"removed": removed, "bytes": freed, "kept": kept}


def _ours(primary: bytes) -> List[bytes]:
    return [path for path in folders_beside(primary) if os.path.isdir(os.path.join(path, LIVE_FOLDER))]


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
        taken = int(_measured(path)["bytes"])
        aside = os.path.join(os.path.dirname(path), _REMOVED + os.urandom(8).hex().encode())
        os.rename(path, aside)
    shutil.rmtree(aside)
    forget(state, path)
    return taken


def _measured(path: bytes) -> Dict[str, Any]:
    """Return a folder's id and disk usage, and the newest mtime of its files, without our ``.clusterddp-live``."""
    taken, written = 0, 0
    for base, folders, names in os.walk(path):
        if base == path and LIVE_FOLDER in folders:
            folders.remove(LIVE_FOLDER)
        for name in names:
            try:
                info = os.lstat(os.path.join(base, name))
            except OSError:  # removed meanwhile
                continue
            taken, written = taken + info.st_blocks * 512, max(written, info.st_mtime_ns)
    return {"path": as_text(path), "id": folder_id(path) or "", "bytes": taken, "written": written}
