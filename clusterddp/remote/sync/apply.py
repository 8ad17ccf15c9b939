"""workdir_state and sync_apply: a run's code in its workdir, the same on every host, proved.

A record tells what earlier syncs put there. Only that is replaced or deleted, and only while nobody changed it. While a
run is live in the workdir, on any host that shares it, a sync that would change the code there is refused.
"""

import os
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ..helper.request import Request
from ..shared import manifest
from ..shared.chunks import digest_of
from ..shared.manifest import Disk, Entry, Hashes, as_text, checked_entry, on_disk
from ..shared.manifest_difference import left_out, lines_of, pieces_of
from ..shared.parts import parts_in
from ..shared.sync_stream import ChunkStream
from ..system.bootstrap import Refused
from .assembly import PARTS, Assembly
from .chunk_source import chunk_stream
from .folded import refuse_folded
from .head import manifest_of, read_head
from .links import make_links
from .lock import PLACE, FolderLock
from .memory import Known, lists_of, unpacked
from .place import WorkdirUpdate
from .proof import Proof, prove
from .record import SyncRecord
from .workdir import Folder, LockedWorkdir, choose_folder, shared_as


def workdir_state(request: Request) -> Dict[str, Any]:
    """Whether a workdir holds the code of ``digest``, proved; else what it holds.

    Args:
        request: args ``workdir``, ``digest`` (empty: only look at the workdir), ``folders``
            (to be there for a worker's cwd), ``made`` (whether the workdir is made if it is not there), ``name`` (of
            the folder beside the workdir that is meant), ``links`` (of the workdir to data on this host), ``known``
            (digests of manifests that the operator has), ``prove`` (whether other code is to be looked at file by
            file too).

    Returns:
        ``{ready, digest, workdir, notice, links, shared, live}``, and where it is not ready ``base``, ``have``,
        ``gone`` and ``chunks``. ``digest`` is the code there now, empty where no sync put it as it is, or that was
        not proved; ``links`` are lines for the user. ``shared`` names the folder where other hosts may see it too,
        else null. ``base`` is the manifest that says what is there, one of ``known``, but for the entries ``have``
        and the paths ``gone``; empty: ``have`` is all. ``chunks``: digests of what is there besides of large files,
        and of a sync that was cut.

    Raises:
        Refused: the folder may not be a workdir, or another sync holds it for long.
    """
    args = request.args
    # It is there from the question on, so that the answer tells which hosts share it.
    with LockedWorkdir(args, made=bool(args["digest"] and args.get("made"))) as lock:
        folder = choose_folder(args, lock.root)
        record = folder.record
        there = _there(args, record, lock.check)
        ready = bool(there.digest) and there.digest == args["digest"]
        live = sorted({one.run for one in folder.live})
        answer = {"ready": ready, "digest": there.digest, "workdir": as_text(folder.path), "live": live}
        answer.update(notice=folder.notice, links=[], shared=shared_as(lock.root))
        if not ready:
            chunks = there.chunks | parts_in(os.path.join(folder.path, PLACE, PARTS))
            return dict(answer, base=there.base, have=there.have, gone=there.gone, chunks=sorted(chunks))
        answer["links"] = _finish(args, folder)
        return answer


class _There(NamedTuple):
    """What a folder holds; as in the answer of ``workdir_state``."""

    digest: str
    base: str
    have: List[Entry]
    gone: List[str]
    chunks: Set[str]


def _there(args: Dict[str, Any], record: SyncRecord, hold: Callable[[], None]) -> _There:
    known = args.get("known") or ()
    if record.whole and record.digest in known and args["digest"] != record.digest and not args.get("prove"):
        # What was changed there shows when it is proved in the end.
        return _There("", record.digest, [], [], _digests(lists_of(args["state"], record.root).values()))
    proof = record.look(hold) if record.whole else None
    if proof is not None and not proof.differs and args["digest"] in ("", record.digest):
        return _There(record.digest, record.digest, [], [], set())
    if proof is not None and record.digest in known:
        return _as_told(record, proof)
    disk = record.disk()
    have = record.present_entries(disk)
    chunks = _digests(digests for _, digests in disk.seen.values() if len(digests) > 1)
    return _There(record.digest if have == record.entries else "", "", have, [], chunks)


def _as_told(record: SyncRecord, proof: Proof) -> _There:
    """What is there as it differs from the record's manifest."""
    lines = lines_of(record.manifest(record.digest)) if proof.differs else []
    put = {number: checked_entry(manifest.values_of(lines[number])[0]) for number in proof.differs}
    have = [entry for entry in proof.differs.values() if entry]
    gone = [put[number].path for number, entry in proof.differs.items() if not entry]
    lists = dict(record.memory.lists if record.memory else {})
    for entry in put.values():
        lists.pop(entry.content, None)
    lists.update(proof.lists)
    return _There("" if proof.differs else record.digest, record.digest, have, gone, _digests(lists.values()))


def _digests(lists: Iterable[List[str]]) -> Set[str]:
    return {digest for digests in lists for digest in digests}


def sync_apply(request: Request) -> Dict[str, Any]:
    """Bring a workdir to the manifest sent, then look at every file of it and prove the digest.

    The operator's data (shared/sync_stream.py): the manifest, as it differs from that of ``base``, the lists of chunks,
    then the chunks this host lacks.

    Args:
        request: args as for ``workdir_state``, the bytes of ``manifest`` and of ``lists``, ``base`` (the digest of a
            manifest that was sent here before, or empty), ``edited`` (whether more has to be mended than what tells
            the manifests apart), ``reuse`` (whether chunks are not sent since they lie here).

    Returns:
        ``{workdir, digest, sent, removed, kept: [[path, kept as]], notice, links}``; or ``{missing}`` when the host
        changed since it was asked, and lacks contents that were not sent: it is to be asked again.

    Raises:
        Refused: a path leads out of the workdir, the disk is full, the digest differs, …
    """
    args = request.args
    incoming = chunk_stream(request)
    told, lists = read_head(incoming, args)
    with LockedWorkdir(args, made=True) as lock:
        try:
            sent = _sent(args, lock.root, told, lists)
            return _apply(args, lock, sent, incoming) if sent else {"missing": []}
        except manifest.BadManifest as error:
            raise Refused(str(error)) from error


class _Sent(NamedTuple):
    """A manifest; what tells it from that of ``base``, with the bytes of this one; the chunks of large contents."""

    manifest: bytes
    told: bytes
    base: str
    earlier: bytes
    lists: Dict[str, List[str]]


def _sent(args: Dict[str, Any], root: bytes, told: bytes, lists: Dict[str, List[str]]) -> Optional[_Sent]:
    """What was sent; None where ``base`` is not here any more: another sync came in between."""
    digest, base = args["digest"], args.get("base") or ""
    if not base:
        return _Sent(manifest_of(told, digest), told, "", b"", lists)
    record = SyncRecord(args["state"], root)
    earlier = record.manifest(base)
    if digest_of(earlier) == base:
        return _Sent(manifest_of(told, digest, earlier), told, base, earlier, lists)
    there = record.manifest(digest)
    if digest_of(there) == digest:  # a host that shares the folder has brought it there
        return _Sent(there, b"=0,%d\n" % there.count(b"\n"), digest, there, lists)
    return None


def _apply(args: Dict[str, Any], lock: FolderLock, sent: _Sent, incoming: ChunkStream) -> Dict[str, Any]:
    folder = choose_folder(args, lock.root, lambda: manifest.decode(sent.manifest))
    target, record = folder.path, folder.record
    began = time.time_ns()
    partly = record.whole and record.digest == sent.base and not folder.live and not args.get("edited")
    placing, then = (_changed if partly else _all)(args, record, sent, lock)
    placing.check()
    record.begin(args["digest"], sent.manifest)
    parts = Assembly(os.path.join(target, PLACE, PARTS), sent.lists)
    try:
        missing = placing.stage(parts, incoming, _entries(sent.manifest))
        if missing:
            return {"missing": missing[:20]}
        placing.place()
    finally:
        parts.close()
    # What was read, known or written since the beginning, and has not changed since, is not read once more.
    looked = time.time_ns()
    known = then(began, looked)
    proof = prove(target, known.lines, known.paths, known.stats, known.at, lock.check)
    wrong = [as_text(known.paths[number]) for number in proof.differs]
    if wrong and partly and not placing.planned.issuperset(wrong):
        return {"missing": wrong[:20]}  # it was changed here before, or just now
    if wrong:
        remedy = "sync again; is another program writing there?"
        raise Refused("%s on this host is not what was synced" % wrong[0], remedy)
    record.complete(args["digest"], known, proof, looked)
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


_Placing = Tuple[WorkdirUpdate, Callable[[int, int], Known]]  # from when it began and when all was in place


def _all(args: Dict[str, Any], record: SyncRecord, sent: _Sent, lock: FolderLock) -> _Placing:  # noqa: ARG001
    """The change of a folder that is looked at file by file, and what will be known of its files then."""
    plan = manifest.decode(sent.manifest)
    refuse_folded(record.root, [on_disk(entry.path) for entry in plan])
    placing = WorkdirUpdate(record, plan, lock.check)

    def then(began: int, placed: int) -> Known:
        seen = {path: one for path, one in placing.disk.seen.items() if one[0][2] < began - manifest.RACY}
        return Known.seen(sent.manifest, plan, dict(seen, **placing.placed), placed)

    return placing, then


def _changed(args: Dict[str, Any], record: SyncRecord, sent: _Sent, lock: FolderLock) -> _Placing:
    """As ``_all``, but only where the manifests differ: of the rest is proved in the end that it is as it was put."""
    memory, lines = record.memory, lines_of(sent.earlier)
    pieces = pieces_of(sent.told, len(lines))
    fresh = [checked_entry(manifest.values_of(one)[0]) for one in pieces if isinstance(one, bytes)]
    numbers = left_out(len(lines), pieces)
    gone = [checked_entry(manifest.values_of(lines[number])[0]) for number in numbers]
    same = memory is not None and memory.manifest == sent.earlier
    known = Known.remembered(memory, sent.manifest, pieces if same else ())
    new = {entry.path for entry in fresh}
    if len(new) < len(fresh) or new - {entry.path for entry in gone}:
        manifest.check_together(known.paths)
        refuse_folded(record.root, known.paths)
    hashes: Hashes = {}
    if memory and same:
        for entry, stats in zip(gone, (memory.stats[number] for number in numbers)):  # noqa: B905 - Python 3.8
            if stats and entry.kind == manifest.FILE:
                hashes[entry.path] = (unpacked(stats), memory.lists.get(entry.content, [entry.content]))
    disk = Disk(record.root, hashes, memory.at if memory else 0)
    placing = WorkdirUpdate(record, fresh, lock.check, gone, disk)
    if args.get("reuse") and memory:
        disk.seen.update({path: one for path, one in memory.hashes().items() if path not in disk.seen})
    return placing, lambda *_: known


def _entries(data: bytes) -> Iterable[Entry]:
    """All entries of a manifest, once somebody asks for them."""
    for values in manifest.values_of(data):
        yield checked_entry(values)


def _finish(args: Dict[str, Any], folder: Folder) -> List[str]:
    """Make what a ready workdir needs besides its code: links to data, the worker's cwd.

    Returns: lines for the user on links to data.
    """
    lines = make_links(folder.path, args.get("links") or {})
    for one in args.get("folders") or []:
        os.makedirs(os.path.join(folder.path, on_disk(manifest.checked_path(one))), exist_ok=True)
    return lines
