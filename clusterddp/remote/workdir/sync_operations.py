"""The operations ``workdir_state`` and ``sync_apply``: bring a project into its workdir, and prove its code.

A record lists what earlier syncs wrote there. Only that is replaced or deleted, and only where nobody changed it. While
a run is live in the workdir, on any host that shares it, a sync that would change files there is refused. data.py
decides which of the project's data is written.
"""

import os
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple, Union

from ..helper.request import Request
from ..shared.schema.record import written
from ..shared.wire.chunk_stream import ChunkStream
from ..shared.wire.chunks import digest_of
from ..shared.wire.partial_files import parts_in
from ..shared.workdir import manifest
from ..shared.workdir.manifest import Disk, Entry, Hashes, as_text, checked_entry, on_disk
from ..shared.workdir.manifest_difference import left_out, lines_of, pieces_of
from ..shared.workdir.sync_records import DataThere, HostChanged, StandingVersions, Synced, SyncRequest, WorkdirState
from ..system.bootstrap import Refused
from ..transfer.chunk_files import PARTS, Assembly
from ..transfer.chunk_source import chunk_stream
from ..transfer.descriptor_walk import reach
from ..transfer.stream_head import manifest_of, read_head
from .case_folding import refuse_folded
from .folder_lock import LIVE_FOLDER, FolderLock
from .links import make_links
from .stat_cache import KnownFiles, chunk_lists_of, unpacked
from .sync_record import DATA_RECORD, SyncRecord
from .update import WorkdirUpdate
from .verify import VerifiedFiles, prove
from .workdir import Folder, LockedWorkdir, folder_of, shared_as

if TYPE_CHECKING:
    from .data import DataPlan

_NAMED = 20  # paths in an answer that the host has changed


def workdir_state(request: Request) -> Dict[str, Any]:
    """Operation: whether a workdir holds the code of ``digest``, proved; else what it holds.

    Takes a ``SyncRequest``, returns a ``WorkdirState`` (shared/workdir/sync_records.py). Raises Refused if the folder
    may not be a workdir, or another sync holds it for long.
    """
    return written(state_of(request.state, request.read_args(SyncRequest)))


def state_of(state: str, order: SyncRequest) -> WorkdirState:
    """What a workdir holds; ``state`` is our state folder."""
    # The folder is made already by this operation, so that the answer shows which hosts share it.
    with LockedWorkdir(state, order, made=bool(order.digest) and order.made) as lock:
        folder = folder_of(state, lock.root)
        there = _there(state, order, folder.record, lock.check)
        if order.digest and there.digest != order.digest:
            folder.refuse_live()
        data = _data_there(state, order, lock.root)
        answer = WorkdirState(
            ready=bool(there.digest) and there.digest == order.digest and data.settled,
            digest=there.digest,
            workdir=as_text(folder.path),
            live=tuple(sorted({one.run for one in folder.live})),
            shared=shared_as(lock.root),
            notice=folder.notice,
            links=(),
            data=data,
        )
        if answer.ready:
            return answer._replace(links=tuple(_finish(order, folder)))
        chunks = there.chunks | parts_in(os.path.join(folder.path, LIVE_FOLDER, PARTS))
        return answer._replace(base=there.base, have=there.have, missing=there.missing, chunks=sorted(chunks))


def _data_there(state: str, order: SyncRequest, root: bytes) -> DataThere:
    """What a workdir holds of a project's data."""
    wanted = order.data
    if wanted is None or (not wanted and not os.path.lexists(os.path.join(root, LIVE_FOLDER, DATA_RECORD))):
        return DataThere(settled=True)
    from .data import DataRecord  # many projects have no data: they do not wait for the import

    record = DataRecord(state, root)
    if record.digest == wanted:
        return DataThere(settled=True, digest=wanted, standing=record.answer(record.standing()))
    empty = not (os.path.isdir(root) and set(os.listdir(root)) - {LIVE_FOLDER})
    return DataThere(settled=False, digest=record.digest, empty=empty)


class _There(NamedTuple):
    """What a folder holds; the fields are as of ``WorkdirState``."""

    digest: str
    base: str
    have: List[Entry]
    missing: List[str]
    chunks: Set[str]


def _there(state: str, order: SyncRequest, record: SyncRecord, hold: Callable[[], None]) -> _There:
    if record.whole and record.digest in order.known and order.digest != record.digest and not order.prove:
        # Files changed there are found by the proof at the end.
        return _There("", record.digest, [], [], _digests(chunk_lists_of(state, record.root).values()))
    proof = record.look(hold) if record.whole else None
    if proof is not None and not proof.differs and order.digest in ("", record.digest):
        return _There(record.digest, record.digest, [], [], set())
    if proof is not None and record.digest in order.known:
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
    missing = [put[number].path for number, entry in proof.differs.items() if not entry]
    chunk_lists = dict(record.memory.chunk_lists if record.memory else {})
    for entry in put.values():
        chunk_lists.pop(entry.content, None)
    chunk_lists.update(proof.chunk_lists)
    return _There("" if proof.differs else record.digest, record.digest, have, missing, _digests(chunk_lists.values()))


def _digests(chunk_lists: Iterable[List[str]]) -> Set[str]:
    return {digest for digests in chunk_lists for digest in digests}


def sync_apply(request: Request) -> Dict[str, Any]:
    """Operation: bring a workdir to the manifest sent, then check every file of it and prove the digest.

    The operator's data (shared/wire/chunk_stream.py) is the manifest, as a difference from that of ``base``, the lists
    of chunks, then the chunks that this host lacks. Takes a ``SyncRequest``; returns a ``Synced``, or a ``HostChanged``
    where the host lacks contents that were not sent, or the user has to decide (shared/workdir/sync_records.py). Raises
    Refused if a path leads out of the workdir, the disk is full, the digest differs and so on.
    """
    return written(synced(request, request.read_args(SyncRequest)))


def synced(request: Request, order: SyncRequest) -> Union[Synced, HostChanged]:
    """Do what ``sync_apply`` does, with arguments read before."""
    incoming = chunk_stream(request, spread=order.spread)
    head, chunk_lists = read_head(incoming, order.manifest, order.chunk_lists)
    size = len(head) - order.data_size
    with LockedWorkdir(request.state, order, made=True) as lock:
        try:
            sent = _sent(request.state, order, lock.root, head[:size], chunk_lists)
            data = None if order.data is None else _data_plan(request.state, order, lock.root, head[size:])
            if sent is None or (data is None and order.data is not None):
                return HostChanged(missing=())
            if data and data.decision.conflicts:
                return HostChanged(missing=(), conflicts=data.decision.conflicts)
            return _apply(request.state, order, lock, sent, data, incoming)
        except manifest.BadManifest as error:
            raise Refused(str(error)) from error


def _data_plan(state: str, order: SyncRequest, root: bytes, sent: bytes) -> "Optional[DataPlan]":
    """What to do with the project's data; None where another sync came in between."""
    from .data import plan_data

    return plan_data(state, order, SyncRecord(state, root), sent)


class _Sent(NamedTuple):
    """A manifest that was sent, its ``difference`` from that of ``base``, the bytes of that one, chunk lists."""

    manifest: bytes
    difference: bytes
    base: str
    earlier: bytes
    chunk_lists: Dict[str, List[str]]


def _sent(
    state: str, order: SyncRequest, root: bytes, difference: bytes, chunk_lists: Dict[str, List[str]]
) -> Optional[_Sent]:
    """Decode what was sent; None where ``base`` is not here any more, since another sync came in between."""
    digest, base = order.digest, order.base
    if not base:
        return _Sent(manifest_of(difference, digest), difference, "", b"", chunk_lists)
    record = SyncRecord(state, root)
    earlier = record.manifest(base)
    if digest_of(earlier) == base:
        return _Sent(manifest_of(difference, digest, earlier), difference, base, earlier, chunk_lists)
    there = record.manifest(digest)
    if digest_of(there) == digest:  # a host that shares the folder has written it there
        return _Sent(there, b"=0,%d\n" % there.count(b"\n"), digest, there, chunk_lists)
    return None


def _apply(
    state: str, order: SyncRequest, lock: FolderLock, sent: _Sent, data: "Optional[DataPlan]", incoming: ChunkStream
) -> Union[Synced, HostChanged]:
    folder = folder_of(state, lock.root)
    target, record = folder.path, folder.record
    began = time.time_ns()
    partly = record.whole and record.digest == sent.base and not folder.live and not order.edited
    placing, then = _changed(record, sent, data, lock, reuse=order.reuse) if partly else _all(record, sent, data, lock)
    if placing.changes:
        folder.refuse_live()
    placing.check()
    record.begin(order.digest, sent.manifest)
    parts = Assembly(os.path.join(target, LIVE_FOLDER, PARTS), sent.chunk_lists)
    try:
        missing = placing.stage(parts, incoming, _entries(sent.manifest, data))
        if missing:
            return HostChanged(missing=tuple(missing[:_NAMED]))
        placing.commit()
    finally:
        parts.close()
    # Files read, known or written since the beginning, and not changed since, are not read once more.
    looked = time.time_ns()
    known = then(began, looked)
    proof = prove(target, known.lines, known.paths, known.stats, known.at, lock.check)
    wrong = [as_text(known.paths[number]) for number in proof.differs]
    if wrong and partly and not placing.planned.issuperset(wrong):
        return HostChanged(missing=tuple(wrong[:_NAMED]))  # they were changed on this host, before or during the sync
    if wrong:
        remedy = "sync again; is another program writing there?"
        raise Refused("%s on this host is not what was synced" % wrong[0], remedy)
    record.complete(order.digest, known, proof, looked)
    links = _finish(order, folder)
    standing = data.complete() if data else StandingVersions()
    return Synced(
        workdir=as_text(target),
        digest=record.digest,
        sent=placing.sent,
        removed=placing.removed,
        kept=tuple((path, kept_as) for path, kept_as in placing.kept),
        notice=folder.notice,
        links=tuple(links),
        standing=standing,
    )


_Placing = Tuple[WorkdirUpdate, Callable[[int, int], KnownFiles]]  # called with the times of begin and completion


def _all(record: SyncRecord, sent: _Sent, data: "Optional[DataPlan]", lock: FolderLock) -> _Placing:
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


def _changed(record: SyncRecord, sent: _Sent, data: "Optional[DataPlan]", lock: FolderLock, *, reuse: bool) -> _Placing:
    """The update where only the manifests' difference is inspected; with ``reuse`` chunks of other files here serve.

    The final proof checks that the rest is unchanged.
    """
    memory, lines = record.memory, lines_of(sent.earlier)
    pieces = pieces_of(sent.difference, len(lines))
    fresh = [checked_entry(manifest.values_of(one)[0]) for one in pieces if isinstance(one, bytes)]
    numbers = left_out(len(lines), pieces)
    dropped = [checked_entry(manifest.values_of(lines[number])[0]) for number in numbers]
    same = memory is not None and memory.manifest == sent.earlier
    known = KnownFiles.remembered(memory, sent.manifest, pieces if same else ())
    new = {entry.path for entry in fresh}
    if len(new) < len(fresh) or new - {entry.path for entry in dropped} or (data and data.decision.put):
        _check_together(known.paths, data, record)
    hashes: Hashes = {}
    if memory and same:
        for entry, stats in zip(dropped, (memory.stats[number] for number in numbers)):
            if stats and entry.kind == manifest.FILE:
                hashes[entry.path] = (unpacked(stats), memory.chunk_lists.get(entry.content, [entry.content]))
    disk = Disk(record.root, hashes, memory.at if memory else 0)
    every, put = _with_data(fresh, dropped, data)
    placing = WorkdirUpdate(record, every, lock.check, put, disk)
    if reuse and memory:
        disk.seen.update({path: one for path, one in memory.hashes().items() if path not in disk.seen})
    return placing, lambda *_: known


def _entries(code: bytes, data: "Optional[DataPlan]") -> Iterable[Entry]:
    """All entries of a transfer, decoded only when they are iterated."""
    for values in manifest.values_of(code):
        yield checked_entry(values)
    yield from data.project if data else ()


def _finish(order: SyncRequest, folder: Folder) -> List[str]:
    """Make what a ready workdir needs besides its code: links to data, the worker's cwd; returns lines for the user."""
    lines = make_links(folder.path, order.links)
    for one in order.folders:
        os.close(reach(os.path.join(folder.path, on_disk(manifest.checked_path(one)))))
    return lines
