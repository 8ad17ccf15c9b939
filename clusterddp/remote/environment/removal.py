"""The operations of ``down --environments``: list environments with their size and users, and remove them."""

import os
import shutil
import stat
import time
from typing import Any, Dict, List, NamedTuple, Set

from ..helper.request import Request
from ..shared.environment.environment_records import EnvironmentReport, RemoveAnswer, RemoveRequest
from ..shared.schema.record import to_fields
from ..spool.layout import all_spools
from ..system.bootstrap import Refused
from ..system.disk_space import disk_usage
from ..system.small_files import names_in
from .folders import EnvironmentStore

FRESH_TIMEOUT = 3600.0  # seconds in which a wheel may be about to be installed
ABANDONED_TIMEOUT = 7 * 86400.0  # seconds after which nobody will finish a partly sent wheel


class Use(NamedTuple):
    """The use of an environment: when runs last began with it (ns) by project id, and live runs with it."""

    last: Dict[str, int]
    live: List[str]


def environments(request: Request) -> List[Dict[str, Any]]:
    """Operation: the environments here, each an ``EnvironmentReport``."""
    store = EnvironmentStore(request.state)
    found = []
    for ident in store.all():
        built = store.ready(ident)
        use = _use_of(request.state, store.folder_of(ident))
        if built:
            use.last[built.project] = max(use.last.get(built.project, 0), built.built)
        size = sum(map(disk_usage, store.folders_of(ident)))
        report = EnvironmentReport(
            ident=ident,
            lock=built.lock if built else "",
            bytes=size,
            used=use.last,
            live=tuple(use.live),
            building=store.is_locked(ident),
        )
        found.append(to_fields(report))
    return found


def remove_environments(request: Request) -> Dict[str, Any]:
    """Operation: remove environments, except those of live runs or being built, and wheels of no remaining one.

    Takes a ``RemoveRequest``, returns a ``RemoveAnswer``.
    """
    store = EnvironmentStore(request.state)
    count = size = 0
    released: Dict[str, int] = {}  # wheel → when an environment that is removed was built of it
    for ident in request.read_args(RemoveRequest).idents:
        folder = store.folder_of(ident)
        if not store.folders_of(ident):
            continue
        with store.locked(ident, wait=False) as free:
            if free and not _use_of(request.state, folder).live:
                built, folders = store.ready(ident), store.folders_of(ident)
                released.update(dict.fromkeys(built.wheels, built.built) if built else {})
                size += sum(map(disk_usage, folders))
                # First of all: an interrupted removal then leaves nothing that looks complete.
                _unlink(os.path.join(folder, "ready"))
                for path in folders:
                    shutil.rmtree(path, ignore_errors=True)
                _unlink(folder + ".lock")
                count += 1
    return to_fields(RemoveAnswer(removed=count, bytes=size + _remove_wheels(store, released)))


def _remove_wheels(store: EnvironmentStore, released: Dict[str, int]) -> int:
    """Remove wheels that no environment on this host was built from; return how many bytes they had.

    A wheel that was used within the last hour is kept, as a build may be about to install it. It is removed if it was
    last used before an environment that is now removed was built (``released``: wheel → ns).
    """
    used: Set[str] = set()
    for ident in store.all():
        built = store.ready(ident)
        used.update(built.wheels if built else ())
    folder, size = os.path.join(store.folder, "wheels"), 0
    for name in names_in(folder):
        path = os.path.join(folder, name)
        try:
            info = os.stat(path)
        except FileNotFoundError:  # another host that shares the folder was faster
            continue
        if stat.S_ISDIR(info.st_mode):  # of a transfer that is under way or was interrupted: the next one removes it
            continue
        age = time.time() - info.st_mtime
        is_old = age > (ABANDONED_TIMEOUT if name.endswith(".part") else FRESH_TIMEOUT)
        if name not in used and (is_old or info.st_mtime_ns <= released.get(name, 0)):
            size += info.st_size
            _unlink(path)
    return size


def _use_of(state: str, folder: str) -> Use:
    """How runs on record use the environment in ``folder``."""
    last: Dict[str, int] = {}
    live = []
    for spool in all_spools(state):
        plan = spool.readable_plan()
        if plan and plan.python.startswith(folder + "/"):
            project = plan.record.project or ""
            try:
                last[project] = max(last.get(project, 0), os.stat(spool.folder).st_mtime_ns)
            except FileNotFoundError:  # another connection has just removed it
                continue
            if spool.alive():
                live.append(spool.run)
    return Use(last, sorted(set(live)))


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:  # another process has just removed it
        pass
    except OSError as error:
        raise Refused("%s cannot be removed: %s" % (path, error.strerror)) from error
