"""The operations of ``down``: ``clean`` removes old files of ours on a host, ``forget`` one run's.

Never a live run's files, never a workdir.
"""

import os
import shutil
import time
from typing import Any, Dict, List

from ..helper.request import Request
from ..preload import server_folder
from ..shared.workdir.manifest import as_text, on_disk
from ..spool.layout import Spool, all_spools
from ..system.disk_space import disk_usage
from ..workdir.other_workdirs import SUPERVISOR_EXIT_LIMIT
from ..workdir.stat_cache import folder_of
from . import retention
from .helpers import remove_unused_helpers

CACHES = ("facts",)


def clean(request: Request) -> Dict[str, Any]:
    """Operation: remove old spools and helpers, with ``purge`` all ended runs.

    Arguments ``hosts``, ``project``, ``purge``. Returns
    ``{spools, bytes, run_dirs, helpers, warm, kept, workdirs, gone}``: how many spools, bytes, run dirs and helpers
    were removed; ``warm``, whether a warm server was ended; ``kept``, the ended runs of the project that still have
    processes here; ``workdirs``, ``[path, days since the last sync]`` of those that no run on record uses; ``gone``,
    whether nothing else of ours is left on the host.
    """
    args = request.args
    state, hosts, project = args["state"], set(args["hosts"]), args["project"]
    removed = retention.prune(state, hosts)
    report: Dict[str, Any] = {"spools": removed.spools, "bytes": removed.bytes, "run_dirs": 0, "kept": []}
    if args["purge"]:
        remove_ended_runs(
            state, [spool for spool in all_spools(state) if spool.host in hosts and _of(spool, project)], report
        )
    last = args["purge"] and not any(all_spools(state))
    report["warm"] = server_folder.end(state)
    report["helpers"] = remove_unused_helpers(state, own=last)
    report["workdirs"] = unclaimed_workdirs(state)
    report["gone"] = last and remove_leftovers(state)
    return report


def forget(request: Request) -> Dict[str, Any]:
    """Operation: remove the spools of ``run`` on ``hosts`` once its supervisors have exited.

    Returns ``{kept}``: whether processes are left, and therefore the spool too.
    """
    args = request.args
    state, deadline = args["state"], time.monotonic() + SUPERVISOR_EXIT_LIMIT
    spools = [spool for spool in all_spools(state, args["run"]) if spool.host in args["hosts"]]
    while any(spool.alive() for spool in spools) and time.monotonic() < deadline:
        time.sleep(0.02)
    kept = [spool for spool in spools if spool.alive() or not retention.nothing_left(spool)]
    for spool in spools:
        if spool not in kept:
            retention.remove_spool(state, spool)
    return {"kept": bool(kept)}


def remove_ended_runs(state: str, spools: List[Spool], report: Dict[str, Any]) -> None:
    """Remove ended runs with their run dirs, and count them in ``report``."""
    live = retention.live_runs(state)
    for spool in spools:
        if spool.run in live:
            continue
        if not retention.nothing_left(spool):
            report["kept"].append(spool.run)
            continue
        report["bytes"] += disk_usage(spool.folder)
        report["spools"] += 1
        retention.remove_spool(state, spool)
        run_dir = os.path.join(state, "rundirs", "%s-%s" % (spool.run, spool.host))
        if os.path.isdir(run_dir):
            report["bytes"] += disk_usage(run_dir)
            report["run_dirs"] += 1
            shutil.rmtree(run_dir, ignore_errors=True)


def unclaimed_workdirs(state: str) -> List[List[Any]]:
    """The synced workdirs that no run on record uses: path, and days since the last sync."""
    plans = [spool.readable_plan() for spool in all_spools(state)]
    claimed = {os.path.realpath(on_disk(plan.workdir)) for plan in plans if plan}
    found: List[List[Any]] = []
    folder = os.path.join(state, "workdirs")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        root = on_disk(folder_of(os.path.join(folder, name)) or "")
        if root and os.path.isdir(root) and root not in claimed:
            age = time.time() - os.stat(os.path.join(folder, name)).st_mtime
            found.append([as_text(root), max(0, int(age // 86400))])
    return sorted(found, key=lambda pair: -pair[1])


def remove_leftovers(state: str) -> bool:
    """Remove caches, sync records and empty folders once no run is left; whether the state folder could be removed."""
    for name in (*CACHES, "warm", "preload"):
        shutil.rmtree(os.path.join(state, name), ignore_errors=True)
    workdirs = os.path.join(state, "workdirs")
    for name in os.listdir(workdirs) if os.path.isdir(workdirs) else ():
        path = os.path.join(workdirs, name)
        root = folder_of(path)
        if root is None or not os.path.isdir(on_disk(root)):  # the workdir it describes is gone
            os.unlink(path)
    for name in ("pruned", "host-id"):
        if os.path.exists(os.path.join(state, name)):
            os.unlink(os.path.join(state, name))
    retention.remove_empty(
        *(os.path.join(state, name) for name in ("runs", "rundirs", "workdirs", "helper", "trash")), state
    )
    return not os.path.isdir(state)


def _of(spool: Spool, project: str) -> bool:
    plan = spool.readable_plan() if project else None
    return plan is not None and plan.record.project == project
