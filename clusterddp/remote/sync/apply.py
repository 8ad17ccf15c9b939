"""workdir_state and sync_apply: a run's code in its workdir, the same on every host, proved.

A record tells what earlier syncs put there. Only that is replaced or deleted, and only while nobody changed it. While a
run is live in the workdir, on any host that shares it, and the code there would have to change, the new code goes to a
sibling, ``<workdir>~<digest>``, that links back to everything else.

Not here: which folder that is (sync/workdir.py), the changes on disk (sync/place.py), the sibling's links
(sync/sibling.py).
"""

import os
import time
from typing import Any, Dict, List, Set, Tuple

from ..helper.request import Request
from ..shared import manifest
from ..shared.chunks import digest_of
from ..shared.frames import parse_json
from ..shared.manifest import Disk, Entry, as_text, on_disk
from ..shared.parts import parts_in
from ..shared.sync_stream import ChunkStream
from ..system.bootstrap import Refused
from . import sibling
from .assembly import PARTS, Assembly
from .chunk_source import chunk_stream
from .folded import refuse_folded
from .home import bring_home
from .links import make_links
from .live import live_runs
from .lock import PLACE, FolderLock, make_place
from .place import WorkdirUpdate
from .record import SyncRecord
from .workdir import Folder, choose_folder, locked_workdir, shared_as


def workdir_state(request: Request) -> Dict[str, Any]:
    """Whether a workdir holds the code of ``digest``, proved; else what it holds.

    Args:
        request: args ``workdir``, ``digest`` (empty: only look at the workdir), ``folders``
            (to be there for a worker's cwd), ``home`` (whether files in siblings are brought home), ``name`` (of
            the folder beside the workdir that is meant), ``alone`` (whether no other folder will do),
            ``links`` (of the workdir to data on this host).

    Returns:
        ``{ready, digest, workdir, notice, home, shared, live}``, and where it is not ready ``have``
        (entries) and ``chunks`` (digests of what is there besides of large files, and of a sync that was cut).
        ``digest`` is the code there now, empty where no sync put it as it is; ``home`` are lines for the user.
        ``shared`` names the folder where other hosts may see it too, else null.

    Raises:
        Refused: the folder may not be a workdir, or another sync holds it for long.
    """
    args = request.args
    # It is there from the question on, so that the answer tells which hosts share it.
    with locked_workdir(args, made=bool(args["digest"] and args.get("home"))) as lock:
        home = []
        if args.get("home") and os.path.isdir(lock.root):
            home = bring_home(args["state"], lock.root, lock.check, args["digest"])
        folder = choose_folder(args, lock.root)
        record = folder.record
        looked = time.time_ns()
        disk = record.disk()
        have = record.present_entries(disk)
        whole = record.digest if have == record.entries else ""
        ready = bool(whole) and whole == args["digest"]
        live = sorted({one.run for one in folder.live})
        answer = {"ready": ready, "digest": whole, "workdir": as_text(folder.path), "live": live}
        answer.update(notice=folder.notice, home=home, shared=shared_as(lock.root))
        if not ready:
            return dict(answer, have=have, chunks=sorted(_chunks(folder.path, disk)))
        if disk.hashed:
            record.remember(disk, looked)
        answer["home"] = home + _finish(args, folder)
        return answer


def sync_apply(request: Request) -> Dict[str, Any]:
    """Bring a workdir to the manifest sent, then read every file of it again and prove the digest.

    The operator's data (shared/sync_stream.py): the manifest, the lists of chunks, then the chunks this host lacks.

    Args:
        request: args as for ``workdir_state``, and the bytes of ``manifest`` and of ``lists``.

    Returns:
        ``{workdir, digest, sent, removed, kept: [[path, kept as]], notice, links}``; or ``{missing}``, and nothing was
        changed, when the host changed since it was asked and lacks contents that were not sent.

    Raises:
        Refused: a path leads out of the workdir, the disk is full, the digest differs, …
    """
    args = request.args
    incoming = chunk_stream(request)
    plan, lists = read_head(incoming, args)
    with locked_workdir(args, made=True) as lock:
        return _apply(args, lock, plan, lists, incoming)


def read_head(incoming: ChunkStream, args: Dict[str, Any]) -> Tuple[List[Entry], Dict[str, List[str]]]:
    """The manifest of ``digest``, and the chunks of each content that has several.

    Raises:
        Refused: they came damaged, or a path would lead out of the folder.
    """
    try:
        head = incoming.content(args["manifest"] + args["lists"])
        plan = manifest.decode(head[: args["manifest"]])
        lists = dict(parse_json(head[args["manifest"] :]))
    except manifest.BadManifest as error:
        raise Refused(str(error)) from error
    except (ValueError, TypeError) as error:
        raise Refused("the manifest came damaged: %s" % error, "sync again") from error
    if digest_of(head[: args["manifest"]]) != args["digest"]:
        raise Refused("the manifest came damaged", "sync again")
    return plan, lists


def _apply(
    args: Dict[str, Any], lock: FolderLock, plan: List[Entry], lists: Dict[str, List[str]], incoming: ChunkStream
) -> Dict[str, Any]:
    folder = choose_folder(args, lock.root, plan)
    target, record = folder.path, folder.record
    if target != lock.root:
        os.makedirs(target, exist_ok=True)
        make_place(target)
    began = time.time_ns()
    placing = WorkdirUpdate(record, plan, lock.check)
    if placing.changes and live_runs(args["state"], target):
        raise Refused(
            "the code in %s was changed on this host while a run uses it" % as_text(target),
            "undo the change or stop that run",
        )
    placing.check()
    refuse_folded(target, plan)
    record.begin(placing.old_and_new_entries())
    parts = Assembly(os.path.join(target, PLACE, PARTS), lists)
    try:
        missing = placing.stage(parts, incoming)
        if missing:
            return {"missing": missing[:20]}
        placing.place()
    finally:
        parts.close()
    # What was read or known at the beginning, and has not changed since, is not read once more.
    proof, looked = Disk(target, placing.disk.seen, began), time.time_ns()
    for entry in plan:
        lock.check()
        if proof.entry(entry.path) != entry:
            remedy = "sync again; is another program writing there?"
            raise Refused("%s on this host is not what was synced" % entry.path, remedy)
    record.complete(args["digest"], plan, proof, looked)
    links = _finish(args, folder)
    return {
        "workdir": as_text(target),
        "digest": record.digest,
        "sent": placing.sent,
        "removed": placing.removed,
        "kept": placing.kept,
        "notice": folder.notice,
        "links": links,
    }


def _chunks(root: bytes, disk: Disk) -> Set[str]:
    """The chunks that need not be sent: of large files, and of what a sync that was cut has left."""
    found = {digest for _, digests in disk.seen.values() if len(digests) > 1 for digest in digests}
    return found | parts_in(os.path.join(root, PLACE, PARTS))


def _finish(args: Dict[str, Any], folder: Folder) -> List[str]:
    """Make what a ready workdir needs besides its code: links to data, the worker's cwd, a sibling's links.

    Returns: lines for the user on links to data.
    """
    told = make_links(folder.primary, args.get("links") or {})
    record = folder.record
    folders = [manifest.checked_path(one) for one in args.get("folders") or []]
    for one in folders:
        os.makedirs(os.path.join(record.root, on_disk(one)), exist_ok=True)
    if record.root != folder.primary:
        main = SyncRecord(args["state"], folder.primary)
        taken = {entry.path for entry in record.entries} | {entry.path for entry in main.unchanged_entries()}
        links = sibling.link_back(folder.primary, record.root, taken, folders, record.links)
        linked = sibling.seen_files(folder.primary, record.root, links, record.linked)
        if (links, linked) != (record.links, record.linked):
            record.links, record.linked = links, linked
            record.save()
    return told
