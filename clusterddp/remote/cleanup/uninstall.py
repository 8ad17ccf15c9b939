"""The operations of ``down``: ``clean`` removes old files of ours on a host, ``forget`` one run's.

Never a live run's files, never a workdir.
"""

import contextlib
import os
import shutil
import time
from typing import Any, Dict, List

from ..helper.request import Request
from ..preload import server_folder
from ..shared.cleanup.cleanup_records import CleanAnswer, CleanRequest, ForgetAnswer, ForgetRequest, UnusedWorkdir
from ..shared.run.plan import PLAN
from ..shared.schema.record import to_fields
from ..shared.workdir.manifest import as_text, on_disk
from ..spool.layout import EXIT, Spool, all_spools
from ..workdir.other_workdirs import SUPERVISOR_EXIT_LIMIT
from ..workdir.stat_cache import STAT_CACHES, stat_caches
from . import retention
from .helpers import remove_unused_helpers


def clean(request: Request) -> Dict[str, Any]:
    """Operation: remove old runs and helpers; takes a ``CleanRequest``, returns a ``CleanAnswer``."""
    asked, state = request.read_args(CleanRequest), request.state
    removed, kept = retention.prune(state, asked.hosts), []
    if asked.purge and asked.project:
        spools = [
            spool for spool in all_spools(state) if spool.host in asked.hosts and _is_of_project(spool, asked.project)
        ]
        kept = remove_ended_runs(state, spools, removed)
    is_last = asked.purge and not any(all_spools(state))
    warm = server_folder.end(state)
    return to_fields(
        CleanAnswer(
            spools=removed.spools,
            bytes=removed.bytes,
            run_dirs=removed.run_dirs,
            helpers=remove_unused_helpers(state, this_version=is_last),
            kept=tuple(kept),
            workdirs=tuple(unclaimed_workdirs(state)),
            nothing_left=is_last and remove_leftovers(state),
            warm=warm,
            runs_left=len({spool.run for spool in all_spools(state) if spool.host in asked.hosts}.difference(kept)),
            left=removed.left,
        )
    )


def forget(request: Request) -> Dict[str, Any]:
    """Operation: remove a run's spools once its supervisors have exited; takes a ``ForgetRequest``.

    Returns a ``ForgetAnswer``.
    """
    asked, state = request.read_args(ForgetRequest), request.state
    deadline = time.monotonic() + SUPERVISOR_EXIT_LIMIT
    spools = [spool for spool in all_spools(state, asked.run) if spool.host in asked.hosts]
    while any(spool.alive() for spool in spools) and time.monotonic() < deadline:
        time.sleep(0.02)
    kept = [spool for spool in spools if spool.alive() or not retention.nothing_left(spool)]
    for spool in spools:
        if spool not in kept:
            retention.remove_spool(state, spool)
    return to_fields(ForgetAnswer(kept=bool(kept)))


def remove_ended_runs(state: str, spools: List[Spool], removed: retention.RemovalCounts) -> List[str]:
    """Remove ended runs with their run dirs, counted in ``removed``; returns those that still have processes."""
    live = retention.live_runs(state)
    over = [spool for spool in spools if spool.run not in live]
    kept = list(dict.fromkeys(spool.run for spool in over if not retention.nothing_left(spool)))
    for spool in over:
        if spool.run not in kept:  # a process of one attempt may use what another has written
            removed.remove(state, spool, run_dir=True)
    return kept


def unclaimed_workdirs(state: str) -> List[UnusedWorkdir]:
    """The synced workdirs that no run on record uses, the oldest first."""
    plans = [spool.readable_plan() for spool in all_spools(state)]
    claimed = {os.path.realpath(on_disk(plan.workdir)) for plan in plans if plan}
    unused: List[UnusedWorkdir] = []
    for path, folder in stat_caches(state):
        root = on_disk(folder or "")
        if root and os.path.isdir(root) and root not in claimed:
            try:
                age = time.time() - os.stat(path).st_mtime
            except FileNotFoundError:  # another node that shares the folder has just removed it
                continue
            unused.append(UnusedWorkdir(path=as_text(root), days=max(0, int(age // 86400))))
    return sorted(unused, key=lambda workdir: -workdir.days)


def remove_leftovers(state: str) -> bool:
    """Remove caches, sync records and empty folders once no run is left; whether the state folder could be removed."""
    for name in ("facts", "warm", "preload"):
        shutil.rmtree(os.path.join(state, name), ignore_errors=True)
    # of workdirs that are gone
    caches = [path for path, folder in stat_caches(state) if folder is None or not os.path.isdir(on_disk(folder))]
    for path in (*caches, os.path.join(state, "pruned"), os.path.join(state, "host-id")):
        with contextlib.suppress(FileNotFoundError):  # another node that shares the folder may have removed it
            os.unlink(path)
    retention.remove_empty(*(os.path.join(state, name) for name in ("runs", "rundirs", STAT_CACHES, "helper")), state)
    return not os.path.isdir(state)


def _is_of_project(spool: Spool, project: str) -> bool:
    """Whether a run's folder belongs to the project, or to none because its start was interrupted before the plan."""
    plan = spool.readable_plan()
    if plan is None:
        return not any(os.path.exists(spool.path(name)) for name in (PLAN, "lock", EXIT))
    return plan.record.project == project
