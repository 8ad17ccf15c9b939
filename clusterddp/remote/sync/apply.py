"""workdir_state and sync_apply: a run's code in its workdir, the same on every host, proved.

A record in the state folder, never in the workdir, tells what earlier syncs put there. Only that is replaced
or deleted, and only while nobody changed it. While a run is live in the workdir and the code there would
have to change, the new code goes to a sibling, ``<workdir>~<digest>``, that links back to everything else.

Not here: the changes on disk (sync/place.py), the sibling's links (sync/sibling.py). On a network filesystem every
host has a record and a lock of its own; the operator lets such hosts go one after the other.
"""

import contextlib
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ..helper.request import Request
from ..shared import manifest
from ..shared.manifest import Disk, Entry, as_text, on_disk
from ..shared.sync_stream import Incoming
from ..spool.layout import all_spools
from ..system.bootstrap import NETWORK_FILESYSTEMS, Refused, filesystem_type, home_folder
from . import sibling
from .place import WorkdirUpdate
from .record import SyncRecord, locked


def workdir_state(request: Request) -> Dict[str, Any]:
    """Whether a workdir holds the code of ``digest``, proved; else what it holds.

    Args:
        request: args ``workdir``, ``digest`` (empty: only look at the workdir), ``folders``
            (to be there for a worker's cwd), ``aside`` (True: another host that shares this folder has a live
            run in it).

    Returns:
        ``{ready, digest, workdir, notice, shared, live}``, and ``have`` (entries) where it is not ready.
        ``digest`` is the code there now, empty where no sync put it as it is.
        ``shared`` names the folder where other hosts may see it too, else null.

    Raises:
        Refused: the folder may not be a workdir, or another sync holds it for long.
    """
    args = request.args
    with locked_workdir(args) as primary:
        target, record, live = choose_folder(args, primary)
        looked = time.time_ns()
        disk = record.disk()
        have = record.present_entries(disk)
        whole = record.digest if have == record.entries else ""
        ready = bool(whole) and whole == args["digest"]
        answer = {"ready": ready, "digest": whole, "workdir": as_text(target), "live": live, "shared": _shared(primary)}
        answer["notice"] = sibling.sibling_notice(primary, target, live)
        if not ready:
            return dict(answer, have=have)
        if disk.hashed:
            record.complete(record.digest, record.entries, disk, looked)
        _finish(args, primary, record)
        return answer


def sync_apply(request: Request) -> Dict[str, Any]:
    """Bring a workdir to the manifest sent, then read every file of it again and prove the digest.

    The operator's data (shared/sync_stream.py): the manifest, then the contents this host lacks.

    Args:
        request: args as for ``workdir_state``, and ``manifest`` (bytes), ``encoding``.

    Returns:
        ``{workdir, digest, sent, removed, kept: [[path, kept as]], notice}``; or ``{missing}``, and nothing was
        changed, when the host changed since it was asked and lacks contents that were not sent.

    Raises:
        Refused: a path leads out of the workdir, the disk is full, the digest differs, …
    """
    args = request.args
    incoming = Incoming(request.read, args["encoding"])
    try:
        plan = manifest.decode(incoming.take(args["manifest"]))
    except manifest.BadManifest as error:
        raise Refused(str(error)) from error
    if manifest.digest(plan) != args["digest"]:
        raise Refused("the manifest came damaged", "sync again")
    with locked_workdir(args) as primary:
        return _apply(args, primary, plan, incoming)


def _apply(args: Dict[str, Any], primary: bytes, plan: List[Entry], incoming: Incoming) -> Dict[str, Any]:
    target, record, live = choose_folder(args, primary, plan)
    os.makedirs(target, exist_ok=True)
    placing = WorkdirUpdate(record, plan)
    if placing.changes and live_runs(args["state"], target):
        raise Refused(
            "the code in %s was changed on this host while a run uses it" % as_text(target),
            "undo the change or stop that run",
        )
    placing.check()
    record.begin(placing.token, placing.old_and_new_entries())
    try:
        missing = placing.stage(incoming)
        if missing:
            return {"missing": missing[:20]}
        placing.place()
    finally:
        placing.remove_staging()
    looked = time.time_ns()
    proof = Disk(target)
    for entry in plan:
        if proof.entry(entry.path) != entry:
            remedy = "sync again; is another program writing there?"
            raise Refused("%s on this host is not what was synced" % entry.path, remedy)
    record.complete(args["digest"], plan, proof, looked)
    _finish(args, primary, record)
    return {
        "workdir": as_text(target),
        "digest": record.digest,
        "sent": placing.sent,
        "removed": placing.removed,
        "kept": placing.kept,
        "notice": sibling.sibling_notice(primary, target, live),
    }


def choose_folder(
    args: Dict[str, Any], primary: bytes, plan: Optional[List[Entry]] = None
) -> Tuple[bytes, SyncRecord, List[str]]:
    """The folder for this code: the workdir, or its sibling while a live run forbids a change there.

    Returns: the folder, its record, and the live runs in the workdir.
    """
    state, record = args["state"], SyncRecord(args["state"], primary)
    live = live_runs(state, primary) or (["of another host"] if args.get("aside") else [])
    if not live or not args["digest"] or _in_place(args, record, plan):
        return primary, record, live
    target = sibling.sibling_path(primary, args["digest"])
    return target, SyncRecord(state, target), live


def _in_place(args: Dict[str, Any], record: SyncRecord, plan: Optional[List[Entry]]) -> bool:
    if plan is not None:
        return not WorkdirUpdate(record, plan).changes
    return record.digest == args["digest"] and record.present_entries(record.disk()) == record.entries


def _finish(args: Dict[str, Any], primary: bytes, record: SyncRecord) -> None:
    """Make what a ready workdir needs besides its code: the worker's cwd, and a sibling's links."""
    folders = [manifest.checked_path(folder) for folder in args.get("folders") or []]
    for folder in folders:
        os.makedirs(os.path.join(record.root, on_disk(folder)), exist_ok=True)
    if record.root != primary:
        main = SyncRecord(args["state"], primary)
        taken = {entry.path for entry in record.entries} | {entry.path for entry in main.unchanged_entries()}
        links = sibling.link_back(primary, record.root, taken, folders, record.links)
        if links != record.links:
            record.links = links
            record.save()


def confirm(state: str, workdir: str, digest: str) -> None:
    """Check that the workdir still holds the code of ``digest`` by its record; call it once the run's lock is held.

    A sync that came in between either saw that lock, and left the workdir alone, or is seen here.

    Raises:
        Refused: another sync has put other code there meanwhile.
    """
    root = os.path.realpath(on_disk(workdir))
    with locked(state, root):
        if SyncRecord(state, root).digest != digest:
            raise Refused("another sync has changed the code in %s meanwhile" % workdir, "run again")


@contextlib.contextmanager
def locked_workdir(args: Dict[str, Any]) -> Iterator[bytes]:
    """The workdir's real path, locked against other syncs."""
    root = workdir_path(args["workdir"], args["state"])
    try:
        with locked(args["state"], root):
            yield root
    except OSError as error:
        place = os.fsdecode(error.filename or _least_space(root, os.fsencode(args["state"])))
        remedy = "make room or give rights there, then sync again"
        raise Refused("cannot sync to %s: %s" % (place, error.strerror), remedy) from error


def _least_space(*folders: bytes) -> bytes:
    """The folder with the least free disk space: a failed write does not name its file."""
    return min((folder for folder in folders if os.path.isdir(folder)), key=lambda f: os.statvfs(f).f_bavail)


def workdir_path(workdir: str, state: str) -> bytes:
    """The real path of a workdir.

    Raises:
        Refused: it is not absolute, or it is a folder that holds other things than a project.
    """
    setting = "set clusterddp_workdir to a folder of its own"
    if workdir.startswith("~/"):
        workdir = os.path.join(home_folder(), workdir[2:])
    if not os.path.isabs(workdir):
        raise Refused("the workdir %r is not absolute" % workdir, setting)
    root = os.path.realpath(on_disk(workdir))
    folder, home, own = root + b"/", os.path.realpath(on_disk(home_folder())), os.path.realpath(on_disk(state))
    if root == b"/" or (home + b"/").startswith(folder) or root == own or root.startswith(own + b"/"):
        raise Refused("%s cannot be a workdir" % as_text(root), setting)
    if os.path.lexists(root) and not os.path.isdir(root):
        raise Refused("the workdir %s is not a folder" % as_text(root), setting)
    return root


def live_runs(state: str, root: bytes) -> List[str]:
    """The live runs whose workdir is this folder."""
    found = []
    for spool in all_spools(state):
        if spool.alive():
            plan = spool.maybe_plan()
            if plan and os.path.realpath(on_disk(plan.workdir)) == root:
                found.append(spool.run)
    return sorted(set(found))


def _shared(root: bytes) -> Optional[str]:
    """A name for a folder on a network filesystem, the same on all hosts that share it; else None."""
    there = root
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    if filesystem_type(as_text(there)) not in NETWORK_FILESYSTEMS:
        return None
    return "%s %d" % (as_text(root), os.stat(there).st_ino)
