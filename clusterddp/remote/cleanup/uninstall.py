"""clean: what ``down`` removes on a host, and what it leaves and names.

Helpers of other versions that no process uses, old spools (cleanup/retention.py); when purging all ended runs of the
project, and what is only a cache. Never a live run's files, never a workdir.
"""

import os
import re
import shutil
import sys
import time
from typing import Any, Dict, List, Set

from ..helper.request import Request
from ..shared.manifest import as_text, on_disk
from ..spool.layout import Spool, all_spools
from ..system import procfs
from ..system.bootstrap import read_json
from . import retention

UNUSED = 600.0  # seconds since a helper's last start, in which one may be about to open it
LEAVING = 10.0  # seconds that a supervisor has to go after its record
CACHES = ("facts",)


def clean(request: Request) -> Dict[str, Any]:
    """Remove what is old; args ``hosts``, ``project``, ``purge``.

    Returns ``{spools, bytes, run_dirs, helpers, kept, workdirs, gone}``: how many of each were removed; ``kept``, the
    ended runs of the project that still have processes here; ``workdirs``, ``[path, days since the last sync]`` of
    those that no run here speaks of; ``gone``, whether nothing else of ours is left on the host.
    """
    args = request.args
    state, hosts, project = args["state"], set(args["hosts"]), args["project"]
    removed = retention.prune(state, hosts)
    told: Dict[str, Any] = {"spools": removed.spools, "bytes": removed.bytes, "run_dirs": 0, "kept": []}
    if args["purge"]:
        purge(state, [spool for spool in all_spools(state) if spool.host in hosts and _of(spool, project)], told)
    last = args["purge"] and not any(all_spools(state))
    told["helpers"] = helpers(state, own=last)
    told["workdirs"] = unclaimed(state)
    told["gone"] = last and sweep_up(state)
    return told


def forget(request: Request) -> Dict[str, Any]:
    """Remove the spools of ``run`` on ``hosts``, once its supervisor is gone, as if it had never been.

    Returns ``{kept}``: whether processes are left, and therefore the spool too.
    """
    args = request.args
    state, deadline = args["state"], time.monotonic() + LEAVING
    spools = [spool for spool in all_spools(state, args["run"]) if spool.host in args["hosts"]]
    while any(spool.alive() for spool in spools) and time.monotonic() < deadline:
        time.sleep(0.02)
    kept = [spool for spool in spools if spool.alive() or not retention.nothing_left(spool)]
    for spool in spools:
        if spool not in kept:
            retention.remove(state, spool)
    return {"kept": bool(kept)}


def purge(state: str, spools: List[Spool], told: Dict[str, Any]) -> None:
    """Remove ended runs with their run dirs; counts in ``told``."""
    live = retention.live_runs(state)
    for spool in spools:
        if spool.run in live:
            continue
        if not retention.nothing_left(spool):
            told["kept"].append(spool.run)
            continue
        told["bytes"] += retention.size(spool.folder)
        told["spools"] += 1
        retention.remove(state, spool)
        run_dir = os.path.join(state, "rundirs", "%s-%s" % (spool.run, spool.host))
        if os.path.isdir(run_dir):
            told["bytes"] += retention.size(run_dir)
            told["run_dirs"] += 1
            shutil.rmtree(run_dir, ignore_errors=True)


def helpers(state: str, *, own: bool) -> int:
    """Remove helpers of other versions that no process uses, with ``own`` also the one that this is; how many."""
    folder, count = os.path.join(state, "helper"), 0
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        ours = os.path.realpath(path) == os.path.realpath(sys.argv[0])
        if ours and not own:
            continue
        try:
            if (ours or time.time() - os.stat(path).st_mtime > UNUSED) and not _users(path):
                os.unlink(path)
                count += 1
        except FileNotFoundError:  # another `down` was faster
            continue
    return count


def unclaimed(state: str) -> List[List[Any]]:
    """The workdirs that syncs have filled and no run on record speaks of: path, and days since the last sync."""
    claimed = {os.path.realpath(on_disk(str(spool.plan().get("workdir") or ""))) for spool in all_spools(state)}
    found: List[List[Any]] = []
    folder = os.path.join(state, "workdirs")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        record = read_json(os.path.join(folder, name)) if name.endswith(".json") else None
        root = on_disk(record["workdir"]) if record else b""
        # A sibling (sync/sibling.py) links into its workdir, and so claims it.
        speaks = any(other == root or other.startswith(root + b"~") for other in claimed)
        if root and os.path.isdir(root) and not speaks:
            age = time.time() - os.stat(os.path.join(folder, name)).st_mtime
            found.append([as_text(root), max(0, int(age // 86400))])
    return sorted(found, key=lambda pair: -pair[1])


def sweep_up(state: str) -> bool:
    """Remove what only served runs, now that there is none; whether all of the state folder is gone."""
    for name in CACHES:
        shutil.rmtree(os.path.join(state, name), ignore_errors=True)
    workdirs = os.path.join(state, "workdirs")
    for name in os.listdir(workdirs) if os.path.isdir(workdirs) else ():
        path = os.path.join(workdirs, re.sub(r"\.lock$", "", name))
        record = read_json(path)
        if not record or not os.path.isdir(on_disk(record["workdir"])):  # there is nothing more to know
            os.unlink(os.path.join(workdirs, name))
    if os.path.exists(os.path.join(state, "pruned")):
        os.unlink(os.path.join(state, "pruned"))
    retention.remove_empty(
        *(os.path.join(state, name) for name in ("runs", "rundirs", "workdirs", "helper", "trash")), state
    )
    return not os.path.isdir(state)


def _of(spool: Spool, project: str) -> bool:
    return bool(project) and spool.plan().get("record", {}).get("project") == project


def _users(path: str) -> Set[int]:
    """The processes that hold a file open, as each helper holds its own; ours left out."""
    own = {os.getpid(), os.getppid()}
    return {pid for pid, seen in procfs.table().items() if pid not in own and procfs.holds(seen, path)}
