"""The operations ``workdir_state`` and ``sync_apply``: bring a project into its workdir, and prove its code.

A record lists what earlier syncs wrote there. Only that is replaced or deleted, and only where nobody changed it. While
a run is live in the workdir, on any host that shares it, a sync that would change files there is refused. data.py
decides which of the project's data is written.
"""

import os
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ..helper.request import Request
from ..shared.wire.chunk_stream import ChunkStream
from ..shared.wire.chunks import digest_of
from ..shared.wire.partial_files import parts_in
from ..shared.workdir import manifest
from ..shared.workdir.manifest import Disk, Entry, Hashes, as_text, checked_entry, on_disk
from ..shared.workdir.manifest_difference import left_out, lines_of, pieces_of
from ..system.bootstrap import Refused
from ..transfer.chunk_files import PARTS, Assembly
from ..transfer.chunk_source import chunk_stream
from ..transfer.descriptor_walk import reach
from ..transfer.stream_head import manifest_of, read_head
from .case_folding import refuse_folded
from .folder_lock import LIVE_FOLDER, FolderLock
from .links import make_links
from .stat_cache import KnownFiles, lists_of, unpacked
from .sync_record import DATA_RECORD, SyncRecord
from .update import WorkdirUpdate
from .verify import VerifiedFiles, prove
from .workdir import Folder, LockedWorkdir, folder_of, shared_as

if TYPE_CHECKING:
    from .data import DataPlan


def workdir_state(request: Request) -> Dict[str, Any]:
    """Operation: whether a workdir holds the code of ``digest``, proved; else what it holds.

    Arguments: ``workdir``, ``digest`` (empty: only inspect the workdir), ``folders`` (to be made for a worker's cwd),
    ``made`` (whether a missing workdir is made), ``name`` (of a folder beside the workdir to use instead), ``links``
    (from the workdir to data on this host), ``known`` (digests of manifests that the operator has), ``prove`` (whether
    other code is checked file by file too), ``data`` (the digest of the project's data, empty for none; null: it is
    left alone).

    Returns ``{ready, digest, workdir, notice, links, shared, live, data}``, and where it is not ready ``base``,
    ``have``, ``gone`` and ``chunks``. ``digest`` is the code there now, empty where it is not as a sync wrote it, or
    that was not proved; ``links`` are lines for the user; ``data`` is as of ``_data_there``. ``shared`` names the
    folder where other hosts may see it too, else null. ``base`` is the manifest, one of ``known``, that describes what
    is there except for the entries ``have`` and the missing paths ``gone``; empty: ``have`` is all. ``chunks`` are
    digests of what is there besides: of large files, and of an interrupted sync. Raises Refused if the folder may not
    be a workdir, or another sync holds it for long.
    """
    args = request.args
    # The folder is made already by this operation, so that the answer shows which hosts share it.
    with LockedWorkdir(args, made=bool(args["digest"] and args.get("made"))) as lock:
        folder = folder_of(args, lock.root)
        there = _there(args, folder.record, lock.check)
        if args["digest"] and there.digest != args["digest"]:
            folder.refuse_live()
        data = _data_there(args, lock.root)
        ready = bool(there.digest) and there.digest == args["digest"] and data["settled"]
        live = sorted({one.run for one in folder.live})
        answer = {"ready": ready, "digest": there.digest, "workdir": as_text(folder.path), "live": live}
        answer.update(notice=folder.notice, links=[], data=data, shared=shared_as(lock.root))
        if not ready:
            chunks = there.chunks | parts_in(os.path.join(folder.path, LIVE_FOLDER, PARTS))
            return dict(answer, base=there.base, have=there.have, gone=there.gone, chunks=sorted(chunks))
        answer["links"] = _finish(args, folder)
        return answer


def _data_there(args: Dict[str, Any], root: bytes) -> Dict[str, Any]:
    """What a workdir holds of a project's data: ``{settled, digest, empty, standing, news}``.

    ``settled``: the project's data has not changed since the last sync; ``digest``: that of the data then; ``empty``:
    the workdir holds nothing, so that all can be written; ``standing``: the host's own versions that stay, and ``news``
    the paths of those that no answer has named before.
    """
    wanted = args.get("data")
    if wanted is None or (not wanted and not os.path.lexists(os.path.join(root, LIVE_FOLDER, DATA_RECORD))):
        return {"settled": True, "digest": "", "empty": False, "standing": [], "news": []}
    from .data import DataRecord  # many projects have no data: they do not wait for the import

    record = DataRecord(args["state"], root)
    settled = record.digest == args["data"]
    empty = not settled and not (os.path.isdir(root) and set(os.listdir(root)) - {LIVE_FOLDER})
    reported = record.answer(record.standing()) if settled else {"standing": [], "news": []}
    return dict(reported, settled=settled, digest=record.digest, empty=empty)


class _There(NamedTuple):
    """What a folder holds; the fields are as in the answer of ``workdir_state``."""

    digest: str
    base: str
    have: List[Entry]
    gone: List[str]
    chunks: Set[str]


def _there(args: Dict[str, Any], record: SyncRecord, hold: Callable[[], None]) -> _There:
    known = args.get("known") or ()
    if record.whole and record.digest in known and args["digest"] != record.digest and not args.get("prove"):
        # Files changed there are found by the proof at the end.
        return _There("", record.digest, [], [], _digests(lists_of(args["state"], record.root).values()))
    proof = record.look(hold) if record.whole else None
    if proof is not None and not proof.differs and args["digest"] in ("", record.digest):
        return _There(record.digest, record.digest, [], [], set())
    if proof is not None and record.digest in known:
        return _as_difference(record, proof)
    disk = record.disk()
    have = record.present_entries(disk)
    chunks = _digests(digests for _, digests in disk.seen.values() if len(digests) > 1)
    return _There(record.digest if have == record.entries else "", "", have, [], chunks)


def _as_difference(record: SyncRecord, proof: VerifiedFiles) -> _There:
    """Describe the folder's files by how they differ from the manifest that the last sync recorded."""
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
    """Operation: bring a workdir to the manifest sent, then check every file of it and prove the digest.

    The operator's data (shared/wire/chunk_stream.py) is the manifest, as a difference from that of ``base``, the lists
    of chunks, then the chunks that this host lacks. Arguments as for ``workdir_state``, the bytes of ``manifest`` and
    of ``lists``, ``base`` (the digest of a manifest that was sent here before, or empty), ``edited`` (whether more has
    to be repaired than the manifests' difference), ``reuse`` (whether chunks are not sent because they are here);
    ``data``, ``data_base`` and ``take`` as for ``data_state``, ``data_size`` (the bytes of its manifest at the end of
    ``manifest``).

    Returns ``{workdir, digest, sent, removed, kept: [[path, kept as]], notice, links, standing, news}``; or
    ``{missing}`` where the host has changed since its answer and lacks contents that were not sent: then ask it again.
    With ``conflicts`` too where the user has to decide first. Raises Refused if a path leads out of the workdir, the
    disk is full, the digest differs, ….
    """
    args = request.args
    incoming = chunk_stream(request)
    head, lists = read_head(incoming, args)
    size = len(head) - int(args.get("data_size") or 0)
    with LockedWorkdir(args, made=True) as lock:
        try:
            sent = _sent(args, lock.root, head[:size], lists)
            data = None if args.get("data") is None else _data_plan(args, lock.root, head[size:])
            if sent is None or (data is None and args.get("data") is not None):
                return {"missing": []}
            if data and data.decision.conflicts:
                return {"missing": [], "conflicts": data.decision.conflicts}
            return _apply(args, lock, sent, data, incoming)
        except manifest.BadManifest as error:
            raise Refused(str(error)) from error


def _data_plan(args: Dict[str, Any], root: bytes, sent: bytes) -> "Optional[DataPlan]":
    """What to do with the project's data; None where another sync came in between."""
    from .data import plan_data

    return plan_data(args, SyncRecord(args["state"], root), sent)


class _Sent(NamedTuple):
    """A manifest that was sent, its difference ``told`` from that of ``base``, the bytes of that one, chunk lists."""

    manifest: bytes
    told: bytes
    base: str
    earlier: bytes
    lists: Dict[str, List[str]]


def _sent(args: Dict[str, Any], root: bytes, difference: bytes, lists: Dict[str, List[str]]) -> Optional[_Sent]:
    """Decode what was sent; None where ``base`` is not here any more, since another sync came in between."""
    digest, base = args["digest"], args.get("base") or ""
    if not base:
        return _Sent(manifest_of(difference, digest), difference, "", b"", lists)
    record = SyncRecord(args["state"], root)
    earlier = record.manifest(base)
    if digest_of(earlier) == base:
        return _Sent(manifest_of(difference, digest, earlier), difference, base, earlier, lists)
    there = record.manifest(digest)
    if digest_of(there) == digest:  # a host that shares the folder has written it there
        return _Sent(there, b"=0,%d\n" % there.count(b"\n"), digest, there, lists)
    return None


def _apply(
    args: Dict[str, Any], lock: FolderLock, sent: _Sent, data: "Optional[DataPlan]", incoming: ChunkStream
) -> Dict[str, Any]:
    folder = folder_of(args, lock.root)
    target, record = folder.path, folder.record
    began = time.time_ns()
    partly = record.whole and record.digest == sent.base and not folder.live and not args.get("edited")
    placing, then = (_changed if partly else _all)(args, record, sent, data, lock)
    if placing.changes:
        folder.refuse_live()
    placing.check()
    record.begin(args["digest"], sent.manifest)
    parts = Assembly(os.path.join(target, LIVE_FOLDER, PARTS), sent.lists)
    try:
        missing = placing.stage(parts, incoming, _entries(sent.manifest, data))
        if missing:
            return {"missing": missing[:20]}
        placing.place()
    finally:
        parts.close()
    # Files read, known or written since the beginning, and not changed since, are not read once more.
    looked = time.time_ns()
    known = then(began, looked)
    proof = prove(target, known.lines, known.paths, known.stats, known.at, lock.check)
    wrong = [as_text(known.paths[number]) for number in proof.differs]
    if wrong and partly and not placing.planned.issuperset(wrong):
        return {"missing": wrong[:20]}  # they were changed on this host, before or during the sync
    if wrong:
        remedy = "sync again; is another program writing there?"
        raise Refused("%s on this host is not what was synced" % wrong[0], remedy)
    record.complete(args["digest"], known, proof, looked)
    links = _finish(args, folder)
    standing = data.complete() if data else {"standing": [], "news": []}
    return {
        **standing,
        "workdir": as_text(target),
        "digest": record.digest,
        "sent": placing.sent,
        "removed": placing.removed,
        "kept": placing.kept,
        "notice": folder.notice,
        "links": links,
    }


_Placing = Tuple[WorkdirUpdate, Callable[[int, int], KnownFiles]]  # called with the times of begin and completion


def _all(
    args: Dict[str, Any],  # noqa: ARG001
    record: SyncRecord,
    sent: _Sent,
    data: "Optional[DataPlan]",
    lock: FolderLock,
) -> _Placing:
    """The update of a folder whose files are all inspected, and what will be known of the files after it."""
    plan = manifest.decode(sent.manifest)
    _check_together([on_disk(entry.path) for entry in plan], data, record)
    every, put = _with_data(plan, record.entries, data)
    placing = WorkdirUpdate(record, every, lock.check, put)

    def then(began: int, placed: int) -> KnownFiles:
        seen = {path: one for path, one in placing.disk.seen.items() if one[0][2] < began - manifest.RACY}
        return KnownFiles.seen(sent.manifest, plan, dict(seen, **placing.placed), placed)

    return placing, then


def _with_data(code: List[Entry], put: List[Entry], data: "Optional[DataPlan]") -> Tuple[List[Entry], List[Entry]]:
    """The entries to place, data included, and those that syncs wrote earlier at these paths or that are obsolete."""
    if data is None:
        return code, put
    now = {entry.path for entry in data.project}  # a file that was code and is data by now is not obsolete
    paths = [entry.path for entry in (*code, *data.decision.put)]
    earlier = [data.before[path] for path in paths if path in data.before]
    return [*code, *data.decision.put], [*(entry for entry in put if entry.path not in now), *earlier]


def _check_together(code: List[bytes], data: "Optional[DataPlan]", record: SyncRecord) -> None:
    """Refuse files of code and data that cannot be in one folder together."""
    paths = [*code, *(on_disk(entry.path) for entry in (data.project if data else ()))]
    manifest.check_together(paths)
    refuse_folded(record.root, paths)


def _changed(
    args: Dict[str, Any], record: SyncRecord, sent: _Sent, data: "Optional[DataPlan]", lock: FolderLock
) -> _Placing:
    """The update where only the manifests' difference is inspected.

    The final proof checks that the rest is unchanged.
    """
    memory, lines = record.memory, lines_of(sent.earlier)
    pieces = pieces_of(sent.told, len(lines))
    fresh = [checked_entry(manifest.values_of(one)[0]) for one in pieces if isinstance(one, bytes)]
    numbers = left_out(len(lines), pieces)
    gone = [checked_entry(manifest.values_of(lines[number])[0]) for number in numbers]
    same = memory is not None and memory.manifest == sent.earlier
    known = KnownFiles.remembered(memory, sent.manifest, pieces if same else ())
    new = {entry.path for entry in fresh}
    if len(new) < len(fresh) or new - {entry.path for entry in gone} or (data and data.decision.put):
        _check_together(known.paths, data, record)
    hashes: Hashes = {}
    if memory and same:
        for entry, stats in zip(gone, (memory.stats[number] for number in numbers)):
            if stats and entry.kind == manifest.FILE:
                hashes[entry.path] = (unpacked(stats), memory.lists.get(entry.content, [entry.content]))
    disk = Disk(record.root, hashes, memory.at if memory else 0)
    every, put = _with_data(fresh, gone, data)
    placing = WorkdirUpdate(record, every, lock.check, put, disk)
    if args.get("reuse") and memory:
        disk.seen.update({path: one for path, one in memory.hashes().items() if path not in disk.seen})
    return placing, lambda *_: known


def _entries(code: bytes, data: "Optional[DataPlan]") -> Iterable[Entry]:
    """All entries of a transfer, decoded only when they are iterated."""
    for values in manifest.values_of(code):
        yield checked_entry(values)
    yield from data.project if data else ()


def _finish(args: Dict[str, Any], folder: Folder) -> List[str]:
    """Make what a ready workdir needs besides its code: links to data, the worker's cwd; returns lines for the user."""
    lines = make_links(folder.path, args.get("links") or {})
    for one in args.get("folders") or []:
        os.close(reach(os.path.join(folder.path, on_disk(manifest.checked_path(one)))))
    return lines
